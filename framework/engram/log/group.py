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

Settled = list[tuple[Any, Position | EngramError]]


# Lanes for a log with independent partitions: enough that one that is away does not hold up the others.
_LANES = 8


class GroupCommit:
    """Appends commands from any number of threads, in the order they were submitted, on threads of its own.

    `on_settled` is called on such a thread, once per append, with each command's ticket and its position, or with why
    it was not appended. A log with independent partitions gets several appends at once, each for partitions of its own.
    """

    def __init__(self, log: Log, *, writer: str, clock: Clock, on_settled: Callable[[Settled], None]) -> None:
        lanes = min(log.partitions, _LANES) if log.independent else 1
        self._lanes = [_Lane(log, writer, clock, on_settled) for _ in range(lanes)]

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

    def __init__(self, log: Log, writer: str, clock: Clock, on_settled: Callable[[Settled], None]) -> None:
        self._log = log
        self._writer = writer
        self._clock = clock
        self._on_settled = on_settled
        self._waiting: list[tuple[int, Envelope, Any]] = []
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="engram-append", daemon=True)
        self._thread.start()

    def submit(self, partition: int, envelope: Envelope, ticket: Any) -> None:
        with self._changed:
            if self._closing:
                raise Unavailable("The application is stopping; the command was not logged. Send it again later.")
            self._waiting.append((partition, envelope, ticket))
            self._changed.notify()

    def expect_end(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closing:
                    self._changed.wait()
                if not self._waiting:
                    return
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
