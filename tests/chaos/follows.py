"""Follow and unfollow storms: the social network on Spark, with a shard killed every second.

Afterwards whom everybody follows, and who follows them, is read by queries and compared for every pair; the state with
a replay from zero in another process; and the events in the log with what was acknowledged.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, closing, suppress
from random import Random
from typing import Any

from engram import Client, Rejected
from engram.log.open import open_log
from engram.testing.history import Recorder, RecordingClient, check

from sample_apps.social import app
from sample_apps.social.commands import Follow, Register, Unfollow
from sample_apps.social.queries import Followers, Following
from tests.chaos.storm import PARTITIONS, LoadHadStopped, digests_equal, logged_commands

SOCIAL = "sample_apps.social:app"
# A killed shard is back after a second or two: with four there is always one to kill.
OPTIONS = ("--shards", "4")
_EVERY_S = 1.0
_SETTLE_S = 120.0
# So often a user does what is refused: follows somebody a second time, or nobody at all.
_MISTAKES = 0.1


class FollowStorm:
    """Users who follow and unfollow each other, each one thing after the other, by way of several clients."""

    def __init__(self, log: str, url: str, *, users: int, clients: int) -> None:
        self.log = log
        self.url = url
        self.users = [f"user{n}" for n in range(users)]
        self.following: dict[str, list[str]] = {user: [] for user in self.users}
        self.followed: dict[str, list[str]] = {user: [] for user in self.users}  # every acknowledged Follow
        self.acknowledged = 0
        self.refused = 0
        self.recoveries: list[float] = []
        self.seconds = 0.0
        self.recorders = [Recorder(f"client{n}") for n in range(clients + 1)]
        self._killed: list[int] = []
        self._stop = asyncio.Event()

    @property
    def kills(self) -> int:
        return len(self._killed)

    async def run(self, seconds: float, say: Callable[[str], None]) -> None:
        """The storm, for so long; returns when every command that was sent is acknowledged."""
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(RecordingClient(self.url, app, recorder, timeout=20, patience=120))
                for recorder in self.recorders
            ]
            watching = clients.pop()
            await asyncio.gather(*(clients[0].send(user, Register(name=user)) for user in self.users))
            started = time.monotonic()
            people = [
                asyncio.create_task(self._live(clients[n % len(clients)], user, Random(n)))
                for n, user in enumerate(self.users)
            ]
            killing = asyncio.create_task(self._kill_every_second(watching, say))
            await asyncio.wait([*people, killing], timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
            self.seconds = time.monotonic() - started
            self._stop.set()
            await asyncio.gather(*people, killing)

    async def _live(self, client: Client, user: str, dice: Random) -> None:
        others = [other for other in self.users if other != user]
        following = self.following[user]
        while not self._stop.is_set():
            whom = dice.choice(others)
            known = whom in following
            mistaken = dice.random() < _MISTAKES
            command = Unfollow(whom=whom) if known is not mistaken else Follow(whom=whom)
            try:
                await client.send(user, command)
            except Rejected:
                assert mistaken, f"{user} was refused {command!r}, and follows {following}"
                self.refused += 1
            else:
                assert not mistaken, f"{user} was not refused {command!r}, and follows {following}"
                if known:
                    following.remove(whom)
                else:
                    following.append(whom)
                    self.followed[user].append(whom)
            self.acknowledged += 1

    async def _kill_every_second(self, client: Client, say: Callable[[str], None]) -> None:
        """Kills one shard after the other, each second one that is alive."""
        recovering: list[asyncio.Task[None]] = []
        turn = 0
        due = time.monotonic()
        while not self._stop.is_set():
            due += _EVERY_S
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), max(0, due - time.monotonic()))
                break
            shards = (await client.status())["shards"]
            alive = [shard for shard in shards if shard["pid"] not in self._killed]
            if alive:
                turn += 1
                victim = next((shard for shard in alive if shard["shard"] == turn % len(shards)), alive[0])
                os.kill(victim["pid"], signal.SIGKILL)
                self._killed.append(victim["pid"])
                recovering.append(asyncio.create_task(self._recovery(client, victim["shard"])))
                if self.kills % 10 == 0:
                    say(f"{self.kills} kills, {self.acknowledged:,} commands acknowledged")
        await asyncio.gather(*recovering)

    async def _recovery(self, client: Client, number: int) -> None:
        """Notes how long it takes until another process serves all that the dead one did."""
        killed = time.monotonic()
        async with asyncio.timeout(_SETTLE_S):
            while True:
                for shard in (await client.status())["shards"]:
                    serving = all(partition["state"] == "serving" for partition in shard["partitions"])
                    if shard["shard"] == number and shard["pid"] not in self._killed and serving:
                        self.recoveries.append(time.monotonic() - killed)
                        return
                await asyncio.sleep(0.05)


async def compare(storm: FollowStorm, *, least_rate: float) -> dict[str, Any]:
    """Everything that must hold after the storm, with the figures; `AssertionError` for the first that does not."""
    rate = storm.acknowledged / storm.seconds
    if rate < least_rate:
        raise LoadHadStopped(f"only {rate:.0f} commands/s during the kills, and {least_rate:.0f} are wanted")
    async with Client(storm.url, app, timeout=20, patience=120) as client:
        following = {user: await client.ask(user, Following()) for user in storm.users}
        assert following == storm.following, "an acknowledged command is not in the state once and in order"
        pairs = await _agree(client, following)
        digests = await digests_equal(client, storm.log, SOCIAL)
    events = await asyncio.to_thread(_events_out, storm)
    history = [operation for recorder in storm.recorders for operation in recorder.operations]
    verdict = check(history, app, logged=await asyncio.to_thread(logged_commands, storm.log, app))
    verdict.raise_if_wrong()
    return {
        "acknowledged": storm.acknowledged,
        "refused": storm.refused,
        "commands_per_s": round(rate),
        "kills": storm.kills,
        "median_recovery_s": round(statistics.median(storm.recoveries), 2),
        "longest_recovery_s": round(max(storm.recoveries), 2),
        "pairs_compared": pairs,
        "pairs_that_follow": sum(map(len, following.values())),
        "events": events,
        "operations_checked": verdict.commands + verdict.queries,
        "digests_equal": digests,
    }


async def _agree(client: Client, following: dict[str, list[str]]) -> int:
    """How many pairs there are: one follows the other exactly if the other is followed by the one.

    The last messages may be on their way, so that it is looked again for a while.
    """
    wanted = {user: sorted(other for other in following if user in following[other]) for user in following}
    deadline = time.monotonic() + _SETTLE_S
    while True:
        followers = {user: sorted(await client.ask(user, Followers())) for user in following}
        if followers == wanted:
            return len(following) * (len(following) - 1)
        if time.monotonic() > deadline:
            wrong = {u: (have, wanted[u]) for u, have in followers.items() if have != wanted[u]}
            raise AssertionError(f"followers and those who follow do not agree (have, should have): {wrong}")
        await asyncio.sleep(0.2)


def _events_out(storm: FollowStorm) -> int:
    """How many `followed` events are out: one for each acknowledged Follow, in the order of its user, and no other."""
    wanted = sum(map(len, storm.followed.values()))
    deadline = time.monotonic() + _SETTLE_S
    while True:
        with closing(open_log(storm.log, app.name)) as log:
            events = [e for p in range(PARTITIONS) for e in log.events(p, after=(-1, 0, 0), limit=10_000_000)]
        out = [event for event in events if event.name == "followed"]
        if len(out) >= wanted or time.monotonic() > deadline:
            break
    assert len({event[:4] for event in events}) == len(events), "an event is out twice"
    followed: dict[str, list[str]] = {user: [] for user in storm.users}
    for event in out:
        body = json.loads(event.body)
        assert body["who"] == event.key
        followed[event.key].append(body["whom"])
    wrong = {
        user: f"{len(found)} are out, {len(storm.followed[user])} were acknowledged"
        for user, found in followed.items()
        if found != storm.followed[user]
    }
    assert not wrong, f"the events are not those of the acknowledged commands: {wrong}"
    return wanted
