"""Snapshots of a running app on request, and its end with a savepoint."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from engram.errors import Misuse, Unavailable
from engram.serving.registry import Registry
from engram.serving.router import Router
from engram.serving.taken import Ended, LastSnapshot, SnapshotsTaken
from engram.shard.requests import PartitionStatus, SnapshotTaken
from engram.snapshots.base import SnapshotStore
from engram.snapshots.names import check_savepoint_name, check_savepoint_new


class Ending:
    """The end of a running app: a signal or a request asks for it, whoever runs the app brings it about and tells what
    became of it. Lives on one event loop."""

    def __init__(self) -> None:
        self.savepoint = ""
        self._asked = asyncio.Event()
        self._told: asyncio.Future[list[PartitionStatus]] = asyncio.get_running_loop().create_future()

    @property
    def is_asked(self) -> bool:
        return self._asked.is_set()

    def ask(self, savepoint: str = "") -> None:
        """Asks for the end; who comes first says with which savepoint."""
        if not self.is_asked:
            self.savepoint = savepoint
            self._asked.set()

    async def wait(self) -> None:
        await self._asked.wait()

    def tell(self, partitions: list[PartitionStatus]) -> None:
        """All shards have ended: so are their partitions."""
        self._told.set_result(partitions)

    async def told(self) -> list[PartitionStatus]:
        return await asyncio.shield(self._told)


class SnapshotsDoor:
    """Takes snapshots and savepoints of a running app. Lives on one event loop; asks the store on threads."""

    def __init__(
        self,
        partitions: int,
        registry: Registry,
        router: Router,
        *,
        store: SnapshotStore | None,
        ending: Ending,
        version: int,
    ) -> None:
        self._partitions = partitions
        self._registry = registry
        self._router = router
        self._store = store
        self._ending = ending
        self._version = version
        self._under_way: set[tuple[str, int]] = set()

    async def take(self, *, savepoint: str, only: int | None, seconds: float) -> SnapshotsTaken:
        """Has a snapshot of every partition taken, or of one only, and returns when all are published.

        Raises `Misuse` for a savepoint that is there already, and what went wrong otherwise; the snapshots of other
        partitions are there then.
        """
        if only is not None and not 0 <= only < self._partitions:
            raise Misuse(f"There is no partition {only}: the log has 0 to {self._partitions - 1}.")
        partitions = range(self._partitions) if only is None else [only]
        await self._check_name(savepoint, partitions)
        names = {(savepoint, p) for p in partitions} if savepoint else set()
        self._under_way |= names
        try:
            asked = (self._router.take_snapshot(p, savepoint, seconds=seconds) for p in partitions)
            found = await asyncio.gather(*asked, return_exceptions=True)
        finally:
            self._under_way -= names
        problems = [problem for problem in found if isinstance(problem, BaseException)]
        taken = [one for one in found if isinstance(one, SnapshotTaken)]
        if problems and len(partitions) > 1:
            raise Unavailable(f"{len(taken)} of {len(partitions)} partitions have it. {problems[0]}") from problems[0]
        if problems:
            raise problems[0]
        return SnapshotsTaken(savepoint=savepoint, snapshots=taken)

    async def end(self, savepoint: str) -> Ended:
        """Stops the app with a savepoint of every partition, and returns when all of it is there, shortly before the
        gateway ends too.

        Nothing is stopped when the name cannot be used, or a partition is not served (`Unavailable`). If a savepoint
        could not be taken although all looked well, the app has stopped without it, which is `Unavailable` too.
        """
        if not savepoint:
            raise Misuse("Say how the savepoint is to be called: savepoint=NAME.")
        await self._check_name(savepoint, range(self._partitions))
        away = [str(p) for p in range(self._partitions) if self._registry.lookup(p) is None or self._registry.stuck(p)]
        if away:
            raise Unavailable(
                f"{len(away)} of {self._partitions} partitions are not served now ({', '.join(away)}), so nothing was "
                "stopped: try again, or see `engram run`'s own messages."
            )
        if self._ending.is_asked:
            raise Unavailable("The application is stopping already.")
        self._ending.ask(savepoint)
        return self._ended(savepoint, {status.partition: status for status in await self._ending.told()})

    def _ended(self, savepoint: str, told: dict[int, PartitionStatus]) -> Ended:
        missing = [p for p in range(self._partitions) if p not in told or told[p].state != "ended"]
        if missing:
            problem = told[missing[0]].problem if missing[0] in told else "Nothing was heard of its shard."
            raise Unavailable(
                f"The app has stopped, but {len(missing)} of {self._partitions} partitions have no savepoint "
                f"{savepoint}. Partition {missing[0]}: {problem} Start version {self._version} once more, and end it "
                "with a savepoint of another name."
            )
        snapshots = [
            LastSnapshot(partition=p, offset=status.snapshot, entities=status.entities)
            for p, status in sorted(told.items())
        ]
        return Ended(savepoint=savepoint, app_version=self._version, snapshots=snapshots)

    async def _check_name(self, savepoint: str, partitions: Sequence[int]) -> None:
        if not savepoint:
            return
        check_savepoint_name(savepoint)
        if self._under_way & {(savepoint, p) for p in partitions}:
            raise Misuse(f"Savepoint {savepoint} is being taken already: wait for it, or choose another name.")
        if self._store is not None:
            await asyncio.to_thread(check_savepoint_new, savepoint, self._store, partitions)
