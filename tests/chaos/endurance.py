"""The long run: every kind of process killed and paused, drawn by a seed, for as long as asked, under load.

Three brokers, the app on Spark (first on a local master, then on a local cluster), a gateway, clients in processes of
their own. It ends with the verdict on everything that clients sent and were told.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from engram import Client
from engram.clock import system_clock
from engram.codec.record import Epoch, Kind, encode_epoch
from engram.dev.kafka import Brokers
from engram.log.base import Entry
from engram.log.open import open_log
from engram.log.partitioner import partition_of
from engram.testing.history import Recorder, RecordingClient, Verdict, check, read_history

from tests.chaos.ledger import Add, Entries, app
from tests.chaos.processes import Application, Writers, pause
from tests.chaos.storm import PARTITIONS, TOPIC, digests_equal, logged_commands
from tests.testing.recorded import Ledgers

MASTERS = ("local[2,16]", "local-cluster[2,1,1024]")
CLIENTS = 3
KEYS = 8
_RECOVER_S = 300.0
_SETTLE_S = 120.0


@dataclass
class Figures:
    """What has happened so far."""

    seed: int
    faults: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # seconds to recover, by kind
    by_master: Counter[str] = field(default_factory=Counter)
    doing: str = "starting"
    news: bool = False  # whether that has just begun
    acknowledged: int = 0
    began: float = field(default_factory=time.monotonic)

    def row(self, kind: str) -> tuple[str, int, float, float]:
        times = self.faults[kind]
        return kind, len(times), round(statistics.median(times), 2), round(max(times), 2)


class Endurance:
    """One long run in a folder. `show` is called whenever the figures have changed."""

    def __init__(self, brokers: Brokers, folder: Path, *, seed: int, show: Callable[[Figures], None]) -> None:
        self._brokers = brokers
        self._folder = folder
        self._dice = Random(seed)
        self.figures = Figures(seed)
        self._show = show
        self.log = brokers.url(TOPIC) + "?replication=3&min_insync=2"
        self.app = Application(self.log, folder, MASTERS[0])
        self._writers: list[Writers] = []
        self._number = 0  # of the next probe
        self._bag: list[str] = []

    def run(self, minutes: float, masters: Iterable[str] = MASTERS) -> dict[str, Any]:
        """Faults for so long, shared by the masters; then the report. `AssertionError` for a partition that does not
        come back."""
        masters = list(masters)
        try:
            for number, master in enumerate(masters):
                self.app.master = master
                self._bag.clear()  # another master has other kinds of processes
                self._say(f"starting on {master}")
                self.app.start()
                self.app.wait_ready()
                if not number:
                    self._writers = [Writers(self.app.url, self._folder, n, KEYS) for n in range(CLIENTS)]
                self._probe()
                deadline = time.monotonic() + 60 * minutes / len(masters)
                while time.monotonic() < deadline:
                    self._fault()
                if number < len(masters) - 1:
                    self._say("a clean stop")
                    self.app.stop()
            return self._end()
        finally:
            for writers in self._writers:
                writers.close()
            self.app.stop()

    # Faults

    def _fault(self) -> None:
        """Draws a fault, brings it about, and waits until all partitions take commands again."""
        faults: dict[str, Callable[[], float]] = {
            "shard killed": lambda: self._kill(self._shard()),
            "shard paused": lambda: self._pause(self._shard(), 2, 8),
            "broker killed": self._kill_broker,
            "broker paused": self._pause_broker,
            "driver and gateway killed": lambda: self._restart(self.app.kill),
            "driver and gateway paused": lambda: self._pause(self.app.pid, 2, 6),
            "driver's JVM killed": lambda: self._restart(self.app.kill_jvm),
            "driver's JVM paused": lambda: self._pause(self.app.jvm(), 2, 6),
            "partition taken by a dead owner": self._take_by_dead_owner,
            "client killed": self._kill_client,
            "client paused": lambda: self._pause(self._dice.choice(self._writers).pid, 2, 5),
        }
        daemons = self.app.daemons()
        if daemons:  # Spark starts another when it next needs one
            faults["Python daemon killed"] = lambda: self._kill(self._dice.choice(daemons))
            faults["Python daemon paused"] = lambda: self._pause(self._dice.choice(daemons), 2, 6)
        executors = self.app.executors()
        if executors:
            faults["executor killed"] = lambda: self._kill_executor(self._dice.choice(executors))
            faults["executor paused"] = lambda: self._pause(self._dice.choice(executors), 2, 8)
            faults["executor paused until Spark gives it up"] = lambda: self._pause(
                self._dice.choice(executors), 35, 40
            )
        kind = self._draw(sorted(faults))
        self._say(kind)
        since = faults[kind]()
        self._probe()
        self.figures.faults[kind].append(time.monotonic() - since)
        self.figures.by_master[self.app.master] += 1
        self._say("under load")
        self._brokers.wait_in_sync(_SETTLE_S)  # the next fault is for a cluster that has got over this one
        self._wait(self._dice.uniform(1, 4))

    def _draw(self, kinds: list[str]) -> str:
        """Each kind once before any comes a second time: a run of some minutes has had all of them."""
        if not set(self._bag) & set(kinds):
            self._bag = self._dice.sample(kinds, len(kinds))
        return self._bag.pop(next(n for n, kind in enumerate(self._bag) if kind in kinds))

    def _shard(self) -> int:
        async def ask() -> list[int]:
            async with Client(self.app.url, app) as client:
                return [shard["pid"] for shard in (await client.status())["shards"]]

        return self._dice.choice(sorted(asyncio.run(ask())))

    def _kill(self, pid: int) -> float:
        with suppress(ProcessLookupError):  # it may have gone with another
            os.kill(pid, signal.SIGKILL)
        return time.monotonic()

    def _kill_executor(self, pid: int) -> float:
        since = time.monotonic()
        self.app.kill_executor(pid)
        return since

    def _pause(self, pid: int, least: float, most: float) -> float:
        with suppress(ProcessLookupError):
            pause(pid, self._dice.uniform(least, most), self._wait)
        return time.monotonic()

    def _kill_broker(self) -> float:
        victim = self._dice.randrange(len(self._brokers))
        self._brokers.kill(victim)
        since = time.monotonic()
        self._wait(self._dice.uniform(1, 6))
        self._brokers.start(victim)
        return since

    def _pause_broker(self) -> float:
        victim = self._dice.randrange(len(self._brokers))
        self._brokers.pause(victim)
        self._wait(self._dice.uniform(4, 12))
        self._brokers.resume(victim)
        return time.monotonic()

    def _restart(self, end: Callable[[], None]) -> float:
        since = time.monotonic()
        end()
        self.app.start()
        self.app.wait_ready()
        return since

    def _take_by_dead_owner(self) -> float:
        """An epoch record of somebody who had seen everything, and is no more."""
        partition = self._dice.randrange(PARTITIONS)
        with closing(open_log(self.log, app.name)) as log:
            epoch = Epoch(owner="dead", app_version=app.version, seen=log.end(partition))
            log.append([Entry(partition, Kind.EPOCH, system_clock(), encode_epoch(epoch))])
        return time.monotonic()

    def _kill_client(self) -> float:
        victim = self._dice.choice(self._writers)
        victim.kill()
        since = time.monotonic()
        victim.start()
        self._until(lambda: victim.acknowledged_by_this > 0, "a client that was started again is not acknowledged")
        return since

    # Looking

    def _probe(self) -> None:
        """Returns when a command of every partition is acknowledged, and every client has gone on."""
        before = [writers.acknowledged for writers in self._writers]

        async def send() -> None:
            async with self._recording() as client:
                keys = [_key_in(partition) for partition in range(PARTITIONS)]
                await asyncio.gather(*(client.send(key, Add(number=self._number)) for key in keys))

        asyncio.run(send())
        self._until(
            lambda: all(w.acknowledged > b for w, b in zip(self._writers, before, strict=True)),
            "a client does not go on",
        )

    def _recording(self) -> RecordingClient:
        """A new client, which has seen nothing yet."""
        self._number += 1
        recorder = Recorder(f"probe{self._number}", self._folder / "probe.jsonl")
        return RecordingClient(self.app.url, app, recorder, timeout=20, patience=_RECOVER_S)

    def _until(self, holds: Callable[[], bool], problem: str) -> None:
        deadline = time.monotonic() + _RECOVER_S
        while not holds():
            assert time.monotonic() < deadline, f"{problem} after {_RECOVER_S:.0f} s"
            self._wait(0.05)

    def _wait(self, seconds: float) -> None:
        time.sleep(seconds)
        self._say(self.figures.doing)

    def _say(self, doing: str) -> None:
        self.figures.news, self.figures.doing = doing != self.figures.doing, doing
        self.figures.acknowledged = sum(writers.acknowledged for writers in self._writers)
        self._show(self.figures)

    # The end

    def _end(self) -> dict[str, Any]:
        self._say("the last words of clients")
        for writers in self._writers:
            writers.stop()
        self._say("comparing")
        told = asyncio.run(self._final_entries())
        self.app.stop()
        verdict = self._verdict()
        lost, duplicated = _missing(told, read_history(*self._histories()))
        return {
            "seed": self.figures.seed,
            "minutes": round((time.monotonic() - self.figures.began) / 60, 1),
            "faults": {kind: self.figures.row(kind)[1] for kind in sorted(self.figures.faults)},
            "faults_by_master": dict(self.figures.by_master),
            "median_seconds_to_recover": {kind: self.figures.row(kind)[2] for kind in sorted(self.figures.faults)},
            "worst_seconds_to_recover": {kind: self.figures.row(kind)[3] for kind in sorted(self.figures.faults)},
            "commands": verdict.commands,
            "acknowledged": verdict.acknowledged,
            "never_heard_of": verdict.unknown,
            "queries": verdict.queries,
            "keys": verdict.keys,
            "lost": lost + verdict.count("lost"),
            "duplicated": duplicated + verdict.count("duplicated"),
            "anomalies": [f"{anomaly.kind}: {anomaly.text}" for anomaly in verdict.anomalies],
            "digests_equal": self._digests_equal,
            "starts_of_the_app": self.app.starts,
            "processes_left_by_killed_drivers": self.app.orphans,
        }

    async def _final_entries(self) -> dict[str, list[int]]:
        """The entries of every key that anybody has written to, by way of queries; and a replay of the log."""
        keys = {operation.key for operation in read_history(*self._histories())}
        async with self._recording() as client:
            entries = {key: await client.ask(key, Entries()) for key in sorted(keys)}
            self._digests_equal = await digests_equal(client, self.log)
        return entries

    def _verdict(self) -> Verdict:
        logged = logged_commands(self.log, app)
        return check(read_history(*self._histories()), app, logged=logged, model=Ledgers)

    def _histories(self) -> list[Path]:
        return sorted(self._folder.glob("*.jsonl"))


def _missing(entries: dict[str, list[int]], history: Iterable[Any]) -> tuple[int, int]:
    """How many acknowledged numbers are not in the final state, and how many are there more than once."""
    acknowledged: dict[str, Counter[int]] = defaultdict(Counter)
    for operation in history:
        if operation.acknowledged:
            acknowledged[operation.key][_number(operation.body)] += 1
    lost = sum((wanted - Counter(entries[key])).total() for key, wanted in acknowledged.items())
    twice = sum(sum(count - 1 for count in Counter(found).values()) for found in entries.values())
    return lost, twice


def _number(body: str) -> int:
    return Add.model_validate_json(body).number


def _key_in(partition: int) -> str:
    return next(key for key in map("probe{}".format, range(1000)) if partition_of(key, PARTITIONS) == partition)
