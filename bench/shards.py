"""Shards in processes of their own, which handle what is in a log as fast as they can, when they are told to."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from engram.clock import system_clock
from engram.log.open import open_log
from engram.shard.garbage import collect_rarely
from engram.shard.policy import Policy
from engram.shard.shard import Shard
from engram.snapshots.files import FileSnapshots
from engram.testing.silence import Silence
from engram.worker import take_short_turns

from bench.workload import app


class Shards:
    """So many shards over one log; each has every so-manieth partition, and snapshots by the default policy."""

    def __init__(self, lines: list[Connection]) -> None:
        self._lines = lines

    def seconds(self) -> float:
        """How long they take, side by side, to handle all that is in the log now."""
        started = time.perf_counter()
        for line in self._lines:
            line.send(None)
        for line in self._lines:
            line.recv()
        return time.perf_counter() - started


@contextmanager
def shards(url: str, count: int, folder: Path) -> Iterator[Shards]:
    """Until the context ends. They have recovered, and handled what is there, when it begins."""
    spawn = multiprocessing.get_context("spawn")
    lines, processes = [], []
    for number in range(count):
        here, there = spawn.Pipe()
        lines.append(here)
        processes.append(spawn.Process(target=_run, args=(there, url, number, count, folder)))
        processes[-1].start()
    for line in lines:
        line.recv()
    try:
        yield Shards(lines)
    finally:
        for line, process in zip(lines, processes, strict=True):
            line.close()
            process.join()


def _run(line: Connection, url: str, number: int, count: int, folder: Path) -> None:
    log = open_log(url, app.name)
    partitions = range(number, log.partitions, count)
    shard = Shard(
        app,
        number=number,
        partitions=partitions,
        log=log,
        store=FileSnapshots(folder, app.name),
        transport=Silence(),
        clock=system_clock,
        owner=f"bench-{number}",
        policy=Policy(),
        background=True,
    )
    shard.recover()
    collect_rarely()
    take_short_turns()
    try:
        while True:
            line.send(None)
            line.recv()
            ends = {partition: log.end(partition) for partition in partitions}
            while any(owned.image.offset < ends[owned.partition] for owned in shard.owned.values()):
                shard.step(wait=False)
    except (EOFError, BrokenPipeError):
        shard.close()
