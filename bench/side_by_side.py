"""Bare loops in processes side by side, each with its part of the keys: what the cores of a machine give at all."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection

from engram.log.partitioner import partition_of

from bench.workload import Bare, Sent, bare_texts


class SideBySide:
    """So many bare loops. They are given their texts before the time runs, as a single one is."""

    def __init__(self, lines: Sequence[Connection]) -> None:
        self._lines = lines

    def seconds(self, commands: Sequence[Sent]) -> float:
        """How long they take until all are done."""
        parts: list[list[Sent]] = [[] for _ in self._lines]
        for command in commands:
            parts[partition_of(command[1], len(parts))].append(command)
        for line, part in zip(self._lines, parts, strict=True):
            line.send(bare_texts(part))
        self._wait()
        started = time.perf_counter()
        for line in self._lines:
            line.send(None)
        self._wait()
        return time.perf_counter() - started

    def _wait(self) -> None:
        for line in self._lines:
            line.recv()


@contextmanager
def side_by_side(count: int) -> Iterator[SideBySide]:
    """Until the context ends."""
    spawn = multiprocessing.get_context("spawn")
    lines, processes = [], []
    for _ in range(count):
        here, there = spawn.Pipe()
        lines.append(here)
        processes.append(spawn.Process(target=_run, args=(there,)))
        processes[-1].start()
        there.close()  # so that one that has died is not waited for
    try:
        yield SideBySide(lines)
    finally:
        for line, process in zip(lines, processes, strict=True):
            line.close()
            process.join()


def _run(line: Connection) -> None:
    bare = Bare()
    try:
        while True:
            texts = line.recv()
            line.send(None)
            line.recv()
            bare.handle(texts)
            line.send(None)
    except EOFError:
        pass
