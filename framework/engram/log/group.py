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
        self._lanes = [_Lane(log, writer, clock, on_settled, new_worker("engram-append")) for _ in range(lanes)]

    def submit(self, partition: int, envelope: Envelope, ticket: Any) -> None:
        """Queues a command. Its ticket comes back through `on_settled`."""
        self._lanes[partition % len(self._lanes)].submit(partition, envelope, ticket)

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
        self._waiting: list[tuple[int, Envelope, Any]] = []
        self._closing = False

    def submit(self, partition: int, envelope: Envelope, ticket: Any) -> None:
        with self._lock:
            if self._closing:
                raise Unavailable("The application is stopping; the command was not logged. Send it again later.")
            self._waiting.append((partition, envelope, ticket))
            if len(self._waiting) == 1:  # what comes until the worker is there goes with it
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

    def _commit(self, taken: list[tuple[int, Envelope, Any]]) -> None:
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


def _sizes(submitted: Sequence[tuple[int, Envelope, Any]]) -> list[int]:
    return [len(envelope.body) + len(envelope.key) for _, envelope, _ in submitted]
