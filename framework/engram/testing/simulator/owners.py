"""Owners: production's shards, each in a simulated process."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path

from engram.codec.codec import Codec
from engram.errors import EngramError
from engram.shard.policy import Policy
from engram.shard.requests import Incoming, Request, Response, Stop
from engram.shard.shard import Shard
from engram.snapshots.files import FileStorage
from engram.snapshots.parted import PartedSnapshots
from engram.testing.simulator.clock import VirtualStopwatch
from engram.testing.simulator.disk import DiskLine, SimulatedDisk
from engram.testing.simulator.json_parts import PARQUET, SIMULATED
from engram.testing.simulator.log import LogLine, SimulatedLog
from engram.testing.simulator.process import Crashed, Process
from engram.testing.simulator.steps import Setup
from engram.testing.simulator.transport import SimulatedTransport
from engram.testing.simulator.workers import SimulatedWorker

STORE = "/snapshots"
_NEVER_S = 1_000_000_000

Heard = Callable[["Owner", bytes, Response], None]


def log_line(log: SimulatedLog, process: Process, setup: Setup) -> LogLine:
    return LogLine(log, process, most=setup.most, forgetful=setup.forgetful)


def open_store(
    disk: SimulatedDisk, process: Process, app: str, setup: Setup, new_mark: Callable[[], str]
) -> PartedSnapshots:
    """Production's snapshot store, on the simulated disk."""
    storage = FileStorage(Path(STORE) / app, disk=DiskLine(disk, process), new_mark=new_mark)
    serializers = PARQUET if setup.parquet else SIMULATED
    return PartedSnapshots(storage, app, keep=setup.keep, serializers=serializers, new_mark=new_mark)


class Owner:
    """A shard and its process. `over`: it has ended, or is dead."""

    def __init__(
        self,
        process: Process,
        codec: Codec,
        partitions: Iterable[int],
        *,
        log: SimulatedLog,
        disk: SimulatedDisk,
        setup: Setup,
        new_mark: Callable[[], str],
        heard: Heard,
    ) -> None:
        self.name = process.name
        self.process = process
        self.partitions = list(partitions)
        self.version = codec.app.version
        self.workers: list[SimulatedWorker] = []
        self.over = False
        self._snapshots_first = setup.snapshots_first
        self.line = SimulatedTransport(f"simulated:{self.name}", lambda to, response: heard(self, to, response))
        self.shard = Shard(
            codec.app,
            number=0,
            partitions=self.partitions,
            log=log_line(log, process, setup),
            store=open_store(disk, process, codec.app.name, setup, new_mark),
            transport=self.line,
            clock=process.clock,
            owner=self.name,
            policy=Policy(
                snapshot_every=setup.snapshot_every,
                snapshot_seconds=_NEVER_S,
                snapshot_budget_ms=0.0,
                snapshot_slice=setup.snapshot_slice,
                snapshot_share=math.inf,
                hot_entities=setup.hot_entities,
            ),
            codec=codec,
            stopwatch=VirtualStopwatch(),
            new_worker=self._new_worker,
        )

    @property
    def states(self) -> dict[int, str]:
        return {partition: owned.state for partition, owned in self.shard.owned.items()}

    @property
    def serving(self) -> bool:
        """Whether it serves all that it was started for."""
        return not self.over and all(self.states.get(partition) == "serving" for partition in self.partitions)

    @property
    def busy(self) -> bool:
        """Whether it has something to do that no record tells of. A snapshot that failed is to be tried again."""
        return any(worker.busy for worker in self.workers) or any(
            owned.image.freeze is not None or owned.taking.writing or owned.taking.failures or owned.building
            for owned in self.shard.owned.values()
        )

    @property
    def published(self) -> set[str]:
        """The newest snapshots that it knows of, by the paths of their manifests."""
        found = self.shard.owned.items()
        return {
            f"{STORE}/{owned.manifest.app}/partition-{partition:04}/{owned.manifest.name}.json"
            for partition, owned in found
            if owned.manifest is not None
        }

    def recover(self) -> bool:
        """As Spark starts a task: one that fails is over, and another is started later."""
        return self._alive(self.shard.recover)

    def turn(self) -> bool:
        """One step; one that has nothing left to serve ends."""
        return not self.over and (self._alive(lambda: self.shard.step(wait=False)) or self._end())

    def work(self, number: int) -> bool:
        """The next job of one of its workers."""
        if self.over or not self.workers:
            return False
        return self._alive(self.workers[number % len(self.workers)].work, ends=False)

    def work_all(self) -> None:
        numbers = range(len(self.workers))
        for number in reversed(numbers) if self._snapshots_first else numbers:
            self.work(number)

    def request(self, sender: bytes, request: Request) -> None:
        self.line.requests.append(Incoming(sender, request))

    def stop(self, savepoint: str = "") -> bool:
        """Ends cleanly; whether it has ended so in all of its partitions."""
        if self.over:
            return False
        self.request(b"", Stop(clean=True, savepoint=savepoint))
        self._alive(lambda: self.shard.step(wait=False), ends=False)
        self._end()
        return self.process.alive and set(self.states.values()) == {"ended"}

    def kill(self) -> None:
        self.over, self.process.alive = True, False

    def _end(self) -> bool:
        if not self.over:
            self._alive(self.shard.close, ends=False)
            self.over = True
        return False

    def _alive(self, do: Callable[[], object], *, ends: bool = True) -> bool:
        """Does it, if the process lives long enough. What production raises ends the process, as it ends a task."""
        try:
            return bool(do())
        except Crashed:
            self.kill()
        except EngramError:
            if ends:
                self.kill()
            else:
                raise
        return False

    def _new_worker(self, _name: str) -> SimulatedWorker:
        self.workers.append(SimulatedWorker())
        return self.workers[-1]
