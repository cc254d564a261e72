"""A log that loses nothing, and lines to it on which everything is lost, late, or there in part."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TypeVar

from engram.codec.record import Origin, Record
from engram.errors import Unavailable
from engram.log.base import Entry, check_partitions
from engram.log.memory import MemoryLog
from engram.model.effects import OutEvent
from engram.testing.simulator.process import Crashed, Process

T = TypeVar("T", Entry, OutEvent)

_UNKNOWN = "Whether the records were appended is not known."


class SimulatedLog(MemoryLog):
    """What all processes share: the records that are durable. `independent` as in `engram.log.base.Log`: then an append
    may be there in part, and of a partition's events one that is not after the last is out already."""

    def __init__(self, app: str, partitions: int, *, independent: bool) -> None:
        super().__init__(app, partitions)
        self.independent = independent
        self._late: list[tuple[list[Entry], list[OutEvent]]] = []

    def land(
        self, entries: Sequence[Entry], events: Sequence[OutEvent], amounts: Sequence[int] | None = None
    ) -> list[int]:
        """Makes them durable; with `amounts`, the first so many of each partition: all or nothing, where partitions are
        not independent."""
        if amounts is not None:
            if not self.independent and not any(amounts):
                return []
            if self.independent:
                entries, events = list(_first(entries, amounts)), list(_first(events, amounts))
        if self.independent:
            events = list(self._after_the_last(events))
        return super().append(entries, events)

    def delay(self, entries: Sequence[Entry], events: Sequence[OutEvent]) -> None:
        self._late.append((list(entries), list(events)))

    def land_late(self) -> bool:
        """The append that has been on its way for longest is there now."""
        if self._late:
            self.land(*self._late.pop(0))
            return True
        return False

    def land_all(self) -> None:
        """Nothing is late any more."""
        while self.land_late():
            pass

    def all_records(self, partition: int) -> list[Record]:
        return self._records[partition]

    def all_events(self, partition: int) -> list[OutEvent]:
        return sorted(event for event in self._events.values() if event.partition == partition)

    def _after_the_last(self, events: Sequence[OutEvent]) -> Iterator[OutEvent]:
        last: dict[int, tuple[int, ...]] = {}
        for place in self._events:
            last[place[0]] = max(place, last.get(place[0], ()))
        for event in events:
            if event[:4] > last.get(event.partition, ()):
                last[event.partition] = event[:4]
                yield event


@cache
def _always_readable() -> int:
    return os.open(os.devnull, os.O_RDONLY)


class SimulatedWatch:
    """See `engram.log.base.Watch`. Nobody sleeps here, so there is nobody to wake: it always says that there may be
    something new."""

    def fileno(self) -> int:
        return _always_readable()

    def clear(self) -> None: ...

    def wake(self) -> None: ...

    def close(self) -> None: ...


class LogLine:
    """See `engram.log.base.Log`: the log as one process reaches it. A read brings `most` records at the most."""

    def __init__(self, log: SimulatedLog, process: Process, *, most: int, forgetful: bool) -> None:
        self.app = log.app
        self.partitions = log.partitions
        self.base = log.base
        self.independent = log.independent
        self._log = log
        self._process = process
        self._most = most
        self._forgetful = forgetful

    def append(self, entries: Sequence[Entry], events: Sequence[OutEvent] = ()) -> list[int]:
        check_partitions(entries, self.partitions)
        try:
            self._reach()
        except Crashed:
            self._log.land(entries, events, [self._process.lands])
            raise
        fault = self._process.next_append()
        match fault.landing:
            case "kept":
                return self._log.land(entries, events)
            case "refused":
                raise Unavailable("The log is full. Nothing was appended.")
            case "unsure":
                self._log.land(entries, events)
            case "torn":
                self._log.land(entries, events, [fault.amount])
            case "late":
                self._log.delay(entries, events)
        raise Unavailable(_UNKNOWN)

    def read(self, partition: int, offset: int, *, limit: int) -> list[Record]:
        self._reach()
        return self._log.read(partition, offset, limit=min(limit, self._most))

    def news(self, offsets: Mapping[int, int]) -> list[int]:
        self._reach()
        return self._log.news(offsets)

    def start(self, partition: int) -> int:
        self._reach()
        return self._log.start(partition)

    def end(self, partition: int) -> int:
        self._reach()
        return self._log.end(partition)

    def last_origin(self, partition: int, origin_partition: int) -> Origin | None:
        self._reach()
        return None if self._forgetful else self._log.last_origin(partition, origin_partition)

    def events(self, partition: int, *, after: tuple[int, int, int], limit: int) -> list[OutEvent]:
        self._reach()
        return self._log.events(partition, after=after, limit=limit)

    def trim(self, partition: int, offset: int) -> None:
        self._reach()
        self._log.trim(partition, offset)

    def watch(self, partitions: Sequence[int] | None = None) -> SimulatedWatch:
        return SimulatedWatch()

    def close(self) -> None: ...

    def _reach(self) -> None:
        if not self._process.reach("log"):
            raise Unavailable("The log cannot be reached. Nothing was appended.")


def _first(items: Sequence[T], amounts: Sequence[int]) -> Iterator[T]:
    so_far: dict[int, int] = {}
    for item in items:
        so_far[item.partition] = so_far.get(item.partition, 0) + 1
        if so_far[item.partition] <= amounts[item.partition % len(amounts)]:
            yield item
