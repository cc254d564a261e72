"""People on the social network, who go on through whatever happens to the machines below it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from random import Random

from engram import Client

from sample_apps.social.queries import Profile
from sample_apps.social.traffic import Traffic
from tests.spark.running import START_S

USERS = 60
_AT_ONCE = 12
# Between two commands of one of them: JVMs that start share the machine with the load.
_PAUSE_S = 0.05
# Messages between users are the last to arrive, behind everything that a new owner has to catch up with.
_SETTLE_S = 60.0


class Crowd:
    """Follows, posts and likes, some at a time, each sent when the one before is acknowledged."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.traffic = Traffic(USERS, Random(7))
        self.sent = 0
        self._stop = asyncio.Event()
        self._acting: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        registrations = self.traffic.registrations(self.client)
        self.sent += len(registrations)
        await asyncio.gather(*registrations)
        self._acting = [asyncio.create_task(self._act()) for _ in range(_AT_ONCE)]
        await self.goes_on()

    async def goes_on(self, *, without: Collection[int] = ()) -> float:
        """The seconds until processes that are none of these, by pid, serve all partitions, every user has answered,
        and as many commands were acknowledged as there are users."""
        began = time.monotonic()
        before = self.traffic.acknowledged
        async with asyncio.timeout(START_S):
            while not await self._served_by_others(without):  # noqa: ASYNC110 - it is about other processes
                await asyncio.sleep(0.05)
            await asyncio.gather(*(self.client.ask(user, Profile()) for user in self.traffic.users))
            seconds = time.monotonic() - began
            while self.traffic.acknowledged < before + USERS:
                assert not any(task.done() for task in self._acting)
                await asyncio.sleep(0.02)
        return seconds

    async def end(self) -> tuple[int, int]:
        """Stops; how many acknowledged effects are missing then, and how many are there too often."""
        self._stop.set()
        await asyncio.gather(*self._acting)
        return await self.traffic.compare(self.client, seconds=_SETTLE_S)

    async def _act(self) -> None:
        while not self._stop.is_set():
            self.sent += 1
            await self.traffic.next(self.client)
            await asyncio.sleep(_PAUSE_S)

    async def _served_by_others(self, without: Collection[int]) -> bool:
        shards = (await self.client.status())["shards"]
        return all(
            shard["pid"] not in without and all(each["state"] == "serving" for each in shard["partitions"])
            for shard in shards
        )
