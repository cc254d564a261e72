"""Group commit: whatever arrives while one append is in flight goes into the next one, a record per partition."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from engram.clock import Clock
from engram.codec.record import Envelope, Kind, encode_commands
from engram.errors import EngramError, Unavailable
from engram.log.base import Entry, Log
from engram.log.pieces import pieces
from engram.model.position import Position
from engram.worker import NewWorker, ThreadWorker, Worker

Settled = list[tuple[Any, Position | EngramError]]
Submitted = tuple[int, Envelope, Any]
"""A command with its partition and its ticket."""


# Lanes for a log with independent partitions: enough that one that is away does not hold up the others.
_LANES = 8


class GroupCommit:
    """Appends commands from any number of threads, in the order they were submitted, on workers of its own.

    `on_settled` is called there, once per append, with each command's ticket and its position, or with why
    it was not appended. A log with independent partitions gets several appends at once, each for partitions of its own.
    """

    def __init__(
        self,
        log: Log,
        *,
        writer: str,
        clock: Clock,
        on_settled: Callable[[Settled], None],
        new_worker: NewWorker = ThreadWorker,
    ) -> None:
        lanes = min(log.partitions, _LANES) if log.independent else 1
        self._on_settled = on_settled
        self._lanes = [_Lane(log, writer, clock, on_settled, new_worker("engram-append")) for _ in range(lanes)]

    def submit(self, partition: int, envelope: Envelope, ticket: Any) -> None:
        """Queues a command. Its ticket comes back through `on_settled`."""
        self._lanes[partition % len(self._lanes)].submit([(partition, envelope, ticket)])

    def submit_many(self, commands: Sequence[Submitted]) -> None:
        """Queues commands together, so that those of one partition come into one record. What comes after `close` is
        settled with that."""
        lanes = len(self._lanes)
        for number, lane in enumerate(self._lanes):
            of_lane = [command for command in commands if command[0] % lanes == number] if lanes > 1 else commands
            try:
                lane.submit(of_lane)
            except Unavailable as problem:
                self._on_settled([(ticket, problem) for _, _, ticket in of_lane])

    def close(self) -> None:
        """Appends what is waiting, then ends."""
        for lane in self._lanes:
            lane.expect_end()
        for lane in self._lanes:
            lane.join()


class _Lane:
    """One append at a time, for some of the partitions."""

    def __init__(
        self, log: Log, writer: str, clock: Clock, on_settled: Callable[[Settled], None], worker: Worker
    ) -> None:
        self._log = log
        self._writer = writer
        self._clock = clock
        self._on_settled = on_settled
        self._worker = worker
        self._lock = threading.Lock()
        self._waiting: list[Submitted] = []
        self._closing = False

    def submit(self, commands: Sequence[Submitted]) -> None:
        if not commands:
            return
        with self._lock:
            if self._closing:
                raise Unavailable("The application is stopping; the command was not logged. Send it again later.")
            first = not self._waiting
            self._waiting.extend(commands)
            if first:  # what comes until the worker is there goes with it
                self._worker.submit(self._commit_waiting)

    def expect_end(self) -> None:
        with self._lock:
            self._closing = True

    def join(self) -> None:
        self._worker.close()

    def _commit_waiting(self) -> None:
        with self._lock:
            taken, self._waiting = self._waiting, []
        self._commit(taken)

    def _commit(self, taken: list[Submitted]) -> None:
        # A stable sort: the order within a partition stays that of submission.
        taken.sort(key=itemgetter(0))
        entries: list[Entry] = []
        tickets: list[list[Any]] = []
        settled: Settled = []
        try:
            time = self._clock()
            for partition, of_partition in groupby(taken, key=itemgetter(0)):
                for piece in pieces(list(of_partition), _sizes):
                    payload = encode_commands([envelope for _, envelope, _ in piece], self._writer)
                    entries.append(Entry(partition, Kind.COMMANDS, time, payload))
                    tickets.append([ticket for _, _, ticket in piece])
            offsets = self._log.append(entries)
        except Exception as problem:  # noqa: BLE001 - this thread must go on: everybody's commands pass through it
            why = problem if isinstance(problem, EngramError) else Unavailable(f"The log failed: {problem!r}")
            settled.extend((ticket, why) for _, _, ticket in taken)
        else:
            for entry, offset, piece_tickets in zip(entries, offsets, tickets, strict=True):
                for index, ticket in enumerate(piece_tickets):
                    settled.append((ticket, Position(entry.partition, offset, index)))
        self._on_settled(settled)


def _sizes(submitted: Sequence[Submitted]) -> list[int]:
    return [len(envelope.body) + len(envelope.key) for _, envelope, _ in submitted]
