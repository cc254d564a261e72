"""A log in memory: for tests, and for trying an app out. Nothing is left when the process ends."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from engram.codec.record import Origin, Record
from engram.log.base import READ_BYTES, Entry, Trimmed, check_partitions
from engram.model.effects import OutEvent

_DRAINED_AT_ONCE = 4096


class MemoryLog:
    """See `engram.log.base.Log`. Durable as long as the object; shared by the threads of one process."""

    def __init__(self, app: str, partitions: int, *, base: int = 0) -> None:
        self.app = app
        self.partitions = partitions
        self.base = base
        self.independent = False
        self._lock = threading.Lock()
        self._records: list[list[Record]] = [[] for _ in range(partitions)]
        self._starts = [base] * partitions  # the offsets of their first records
        self._origins: dict[tuple[int, int], Origin] = {}
        self._events: dict[tuple[int, int, int, int], OutEvent] = {}
        self._watches: set[MemoryWatch] = set()

    def append(self, entries: Sequence[Entry], events: Sequence[OutEvent] = ()) -> list[int]:
        check_partitions(entries, self.partitions)
        offsets = []
        with self._lock:
            for entry in entries:
                records = self._records[entry.partition]
                offset = self._starts[entry.partition] + len(records)
                offsets.append(offset)
                records.append(Record(entry.partition, offset, entry.kind, entry.time, entry.payload))
                if entry.origin is not None:
                    origin_partition, origin = entry.origin
                    pair = entry.partition, origin_partition
                    self._origins[pair] = max(origin, self._origins.get(pair, origin))
            for event in events:
                self._events.setdefault(event[:4], event)
            for watch in self._watches:
                watch.wake()
        return offsets

    def read(self, partition: int, offset: int, *, limit: int) -> list[Record]:
        with self._lock:
            start = self._starts[partition]
            if offset < start:
                raise Trimmed.at("the log in memory", partition, offset, start)
            return bounded(self._records[partition][offset - start : offset - start + limit])

    def news(self, offsets: Mapping[int, int]) -> list[int]:
        return [partition for partition, offset in offsets.items() if offset < self.end(partition)]

    def start(self, partition: int) -> int:
        return self._starts[partition]

    def end(self, partition: int) -> int:
        return self._starts[partition] + len(self._records[partition])

    def last_origin(self, partition: int, origin_partition: int) -> Origin | None:
        return self._origins.get((partition, origin_partition))

    def events(self, partition: int, *, after: tuple[int, int, int], limit: int) -> list[OutEvent]:
        with self._lock:
            later = (e for place, e in self._events.items() if place[0] == partition and place[1:] > after)
            return sorted(later)[:limit]

    def trim(self, partition: int, offset: int) -> None:
        with self._lock:
            gone = max(0, min(offset, self.end(partition)) - self._starts[partition])
            del self._records[partition][:gone]
            self._starts[partition] += gone

    def watch(self, partitions: Sequence[int] | None = None) -> MemoryWatch:
        return MemoryWatch(self._watches, self._lock)

    def close(self) -> None:
        """Keeps the records: whoever holds the object may read on."""

    def copy(self) -> MemoryLog:
        """Another log with the same contents; from here on each goes its own way."""
        other = MemoryLog(self.app, self.partitions)
        with self._lock:
            other._records = [records.copy() for records in self._records]
            other._origins = self._origins.copy()
            other._events = self._events.copy()
        return other


class MemoryWatch:
    """A pipe that every append writes to, while it is among `others`, which only a holder of `lock` looks at."""

    def __init__(self, others: set[MemoryWatch], lock: threading.Lock) -> None:
        self._others = others
        self._lock = lock
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        with lock:
            others.add(self)

    def fileno(self) -> int:
        return self._read

    def wake(self) -> None:
        with suppress(BlockingIOError):  # full: it is awake already
            os.write(self._write, b"!")

    def clear(self) -> None:
        drain(self._read)

    def close(self) -> None:
        with self._lock:
            self._others.discard(self)
        os.close(self._read)
        os.close(self._write)


def bounded(records: Iterable[Record]) -> list[Record]:
    """The first records, as many as one read may bring."""
    taken: list[Record] = []
    size = 0
    for record in records:
        size += len(record.payload)
        if taken and size > READ_BYTES:
            break
        taken.append(record)
    return taken


def drain(fd: int) -> None:
    """Reads a non-blocking pipe empty. What comes after a read that did not fill its buffer makes it readable again."""
    with suppress(BlockingIOError):
        while len(os.read(fd, _DRAINED_AT_ONCE)) == _DRAINED_AT_ONCE:
            pass
