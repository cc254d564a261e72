"""Traffic for demos and tests: what people would do, and an account of what was acknowledged."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Coroutine
from random import Random
from typing import Any

from engram import Client, Rejected
from engram.model.command import Command

from sample_apps.social.commands import Follow, Like, Publish, Register
from sample_apps.social.queries import Followers, Following, Posts, Profile

_FIRST = ["Ada", "Bob", "Cy", "Dora", "Emil", "Fay", "Gus", "Hana", "Ivo", "June", "Kim", "Lou"]
_WORDS = ["log", "state", "image", "replay", "shard", "epoch", "snapshot", "query", "command", "stream", "memory"]
_NO_POST = "none"


class Traffic:
    """Generates commands, remembers which were acknowledged and how, and compares that with live state."""

    def __init__(self, users: int, random: Random) -> None:
        self.users = [f"{_FIRST[i % len(_FIRST)].lower()}{i // len(_FIRST) or ''}" for i in range(users)]
        self.acknowledged = 0
        self.rejected = 0
        self._random = random
        self._follows: dict[str, Counter[str]] = {user: Counter() for user in self.users}
        self._posts: dict[str, list[str]] = {user: [] for user in self.users}
        self._likes: Counter[str] = Counter()

    def registrations(self, client: Client) -> list[Coroutine[Any, Any, None]]:
        return [self._send(client, user, Register(name=user.capitalize())) for user in self.users]

    def next(self, client: Client) -> Coroutine[Any, Any, None]:
        """One more command, not yet sent. A few are such that they will be rejected."""
        user, other = self._random.choice(self.users), self._random.choice(self.users)
        kind = self._random.random()
        if kind < 0.45:
            return self._follow(client, user, other)
        if kind < 0.75 or not any(self._posts.values()):
            words = self._random.choices(_WORDS, k=4)
            return self._publish(client, user, " ".join(words))
        return self._like(client, user, other)

    async def _send(self, client: Client, user: str, command: Command[Any, Any]) -> Any:
        """The reply, or the `Rejected` that came instead."""
        try:
            reply = await client.send(user, command)
        except Rejected as problem:
            self.rejected += 1
            reply = problem
        self.acknowledged += 1
        return reply

    async def _follow(self, client: Client, user: str, whom: str) -> None:
        if await self._send(client, user, Follow(whom=whom)) is None:
            self._follows[user][whom] += 1

    async def _publish(self, client: Client, user: str, text: str) -> None:
        post = await self._send(client, user, Publish(text=text))
        if isinstance(post, str):
            self._posts[user].append(post)

    async def _like(self, client: Client, user: str, author: str) -> None:
        post = self._random.choice(self._posts[author] or [_NO_POST])
        if await self._send(client, user, Like(author=author, post=post)) is None and post != _NO_POST:
            self._likes[author] += 1

    async def compare(self, client: Client, *, seconds: float) -> tuple[int, int]:
        """How many acknowledged effects are missing, and how many are there too often.

        Messages between users take a moment: the comparison is repeated until it is good or time is up.
        """
        deadline = time.monotonic() + seconds
        while True:
            lost, doubled = await self._compare(client)
            if (lost, doubled) == (0, 0) or time.monotonic() > deadline:
                return lost, doubled
            await asyncio.sleep(0.2)

    async def _compare(self, client: Client) -> tuple[int, int]:
        lost = doubled = 0
        followers: dict[str, Counter[str]] = {user: Counter() for user in self.users}
        for user, follows in self._follows.items():
            for whom in follows:
                followers[whom][user] += 1
        for user in self.users:
            pairs = [
                (self._follows[user], Counter(await client.ask(user, Following()))),
                (followers[user], Counter(await client.ask(user, Followers()))),
                (Counter(self._posts[user]), Counter(p.post for p in await client.ask(user, Posts(limit=200)))),
                (Counter({user: self._likes[user]}), Counter({user: (await client.ask(user, Profile())).likes})),
            ]
            for acknowledged, live in pairs:
                lost += (acknowledged - live).total()
                doubled += (live - acknowledged).total()
        return lost, doubled
