"""Shards in processes of their own, which handle what is in a log as fast as they can, when they are told to."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from ctypes import Array, c_double, c_longlong
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import NamedTuple

from engram.clock import system_clock
from engram.log.base import Log
from engram.log.open import open_log
from engram.shard.garbage import collect_rarely
from engram.shard.policy import Policy
from engram.shard.shard import Shard
from engram.snapshots.files import FileSnapshots
from engram.testing.silence import Silence
from engram.worker import take_short_turns

from bench.quiet import errors_only
from bench.workload import app


@dataclass(frozen=True)
class Work:
    """What shards have done in some time: commands handled, and seconds of a processor that their own threads took, and
    all threads beside them, such as those that write snapshots."""

    seconds: float = 0.0
    commands: int = 0
    own: float = 0.0
    beside: float = 0.0

    def __add__(self, more: Work) -> Work:
        return Work(
            self.seconds + more.seconds,
            self.commands + more.commands,
            self.own + more.own,
            self.beside + more.beside,
        )


class _Told(NamedTuple):
    """Memory that the shards' processes share with this one."""

    stood: Array[c_double]  # for how long they stood still
    handled: Array[c_longlong]  # how many commands, by shard
    published: Array[c_longlong]  # how many snapshots each of its partitions has had, at least


class Shards:
    """So many shards over one log; each has every so-manieth partition, and snapshots by the default policy.

    But for when they are measured they stand still, their snapshots' writers too: what these do beside somebody else's
    measurement would be in that one's figures, and missing in their own.
    """

    def __init__(self, lines: list[Connection], processes: list[SpawnProcess], told: _Told) -> None:
        self._lines = lines
        self._processes = processes
        self._told = told
        self._since = 0.0  # when they began to stand still
        self._done: set[Connection] = set()  # who has nothing left to handle, and waits for a word
        self._wait_for(len(lines))

    @property
    def snapshots(self) -> int:
        """How many each partition has had, at least."""
        return int(min(self._told.published))

    def seconds(self) -> float:
        """How long they take, side by side, to handle all that is in the log now."""
        return self._work(len(self._lines)).seconds

    def until_one_is_done(self) -> Work:
        """What they do, side by side, until one of them has handled all that is in the log for it. The others go on
        from there the next time: so none waits for another one's snapshots."""
        return self._work(1)

    def close(self) -> None:
        self._go_on()
        for line, process in zip(self._lines, self._processes, strict=True):
            line.close()
            process.join()

    def _work(self, done: int) -> Work:
        handled, before = sum(self._told.handled), self._processor_time()
        started = self._go_on()
        for line in self._done:
            line.send(None)
        self._done.clear()
        self._wait_for(done)
        after = self._processor_time()
        return Work(
            self._since - started, sum(self._told.handled) - handled, after[0] - before[0], after[1] - before[1]
        )

    def _wait_for(self, done: int) -> None:
        while len(self._done) < done:
            for line in wait([line for line in self._lines if line not in self._done]):
                assert isinstance(line, Connection)
                line.recv()
                self._done.add(line)
        self._since = time.perf_counter()
        self._signal(signal.SIGSTOP)

    def _go_on(self) -> float:
        now = time.perf_counter()
        self._told.stood[0] += now - self._since  # before any of them looks at the time
        self._signal(signal.SIGCONT)
        return now

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes:
            if process.pid is not None and process.is_alive():
                os.kill(process.pid, number)

    def _processor_time(self) -> tuple[float, float]:
        """Seconds, of the shards' own threads and of all beside them."""
        own = whole = 0.0
        for process in self._processes:
            own += _seconds_of(Path(f"/proc/{process.pid}/task/{process.pid}/stat"))
            whole += _seconds_of(Path(f"/proc/{process.pid}/stat"))
        return own, whole - own


def _seconds_of(stat: Path) -> float:
    user, system = stat.read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@contextmanager
def shards(url: str, count: int, folder: Path) -> Iterator[Shards]:
    """Until the context ends. They have recovered, and handled what is there, when it begins."""
    spawn = multiprocessing.get_context("spawn")
    told = _Told(spawn.RawArray("d", 1), spawn.RawArray("q", count), spawn.RawArray("q", count))
    lines, processes = [], []
    for number in range(count):
        here, there = spawn.Pipe()
        lines.append(here)
        processes.append(
            spawn.Process(target=_run, args=(there, url, folder, told), kwargs={"number": number, "count": count})
        )
        processes[-1].start()
        there.close()  # so that one that has died is not waited for
    with closing(Shards(lines, processes, told)) as running:
        yield running


def _run(line: Connection, url: str, folder: Path, told: _Told, *, number: int, count: int) -> None:
    errors_only()
    log = open_log(url, app.name)
    partitions = range(number, log.partitions, count)
    shard = Shard(
        app,
        number=number,
        partitions=partitions,
        log=log,
        store=FileSnapshots(folder, app.name),
        transport=Silence(),
        # By both the policy counts what a snapshot costs, and how long ago it was: they stand still with the shard.
        clock=lambda: system_clock() - int(1000 * told.stood[0]),
        stopwatch=lambda: time.perf_counter() - told.stood[0],
        owner=f"bench-{number}",
        # Who stands still is not stuck: the watchdog would print all stacks each time.
        policy=Policy(stuck_after=3600),
        background=True,
    )
    shard.recover()
    collect_rarely()
    take_short_turns()
    try:
        while True:
            line.send(None)
            line.recv()
            ends = _ends(log, partitions)
            # What is appended while they stand still is looked for only when the rest is done: to ask costs.
            while _is_behind(shard, ends) or _is_behind(shard, ends := _ends(log, partitions)):
                shard.step(wait=False)
                told.handled[number] = sum([owned.image.handled for owned in shard.owned.values()])
                told.published[number] = min([owned.taking.published for owned in shard.owned.values()])
    except (EOFError, ConnectionError):
        shard.close()


def _ends(log: Log, partitions: Iterable[int]) -> dict[int, int]:
    return {partition: log.end(partition) for partition in partitions}


def _is_behind(shard: Shard, ends: dict[int, int]) -> bool:
    return any(owned.image.offset < ends[owned.partition] for owned in shard.owned.values())
