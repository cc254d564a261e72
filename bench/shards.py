"""Shards in processes of their own, which handle what is in a log as fast as they can, when they are told to."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Protocol

from engram.clock import system_clock
from engram.log.open import open_log
from engram.shard.garbage import collect_rarely
from engram.shard.policy import Policy
from engram.shard.shard import Shard
from engram.snapshots.files import FileSnapshots
from engram.testing.silence import Silence
from engram.worker import take_short_turns

from bench.workload import app


class Seconds(Protocol):
    """A number that processes share."""

    value: float


class Shards:
    """So many shards over one log; each has every so-manieth partition, and snapshots by the default policy.

    But for when they are measured they stand still, their snapshots' writers too: what these do beside somebody else's
    measurement would be in that one's figures, and missing in their own.
    """

    def __init__(self, lines: list[Connection], processes: list[SpawnProcess], stood: Seconds) -> None:
        self._lines = lines
        self._processes = processes
        self._stood = stood
        self._since = 0.0  # when they began to stand still
        self.snapshots = 0  # how many each partition has had, at least
        self._ready()

    def seconds(self) -> float:
        """How long they take, side by side, to handle all that is in the log now."""
        self._go_on()
        started = time.perf_counter()
        for line in self._lines:
            line.send(None)
        self._ready()
        return time.perf_counter() - started

    def close(self) -> None:
        self._go_on()
        for line, process in zip(self._lines, self._processes, strict=True):
            line.close()
            process.join()

    def _ready(self) -> None:
        self.snapshots = min([line.recv() for line in self._lines])
        self._signal(signal.SIGSTOP)
        self._since = time.perf_counter()

    def _go_on(self) -> None:
        self._stood.value += time.perf_counter() - self._since  # before any of them looks at the time
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes:
            if process.pid is not None and process.is_alive():
                os.kill(process.pid, number)


@contextmanager
def shards(url: str, count: int, folder: Path) -> Iterator[Shards]:
    """Until the context ends. They have recovered, and handled what is there, when it begins."""
    spawn = multiprocessing.get_context("spawn")
    stood = spawn.RawValue("d", 0.0)
    lines, processes = [], []
    for number in range(count):
        here, there = spawn.Pipe()
        lines.append(here)
        processes.append(
            spawn.Process(target=_run, args=(there, url, folder, stood), kwargs={"number": number, "count": count})
        )
        processes[-1].start()
        there.close()  # so that one that has died is not waited for
    with closing(Shards(lines, processes, stood)) as running:
        yield running


def _run(line: Connection, url: str, folder: Path, stood: Seconds, *, number: int, count: int) -> None:
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
        clock=lambda: system_clock() - int(1000 * stood.value),
        stopwatch=lambda: time.perf_counter() - stood.value,
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
            line.send(min(owned.taking.published for owned in shard.owned.values()))
            line.recv()
            ends = {partition: log.end(partition) for partition in partitions}
            while any(owned.image.offset < ends[owned.partition] for owned in shard.owned.values()):
                shard.step(wait=False)
    except (EOFError, BrokenPipeError):
        shard.close()
