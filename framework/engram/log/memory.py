"""A log in memory: for tests, and for trying an app out. Nothing is left when the process ends."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

from engram.codec.record import Origin, Record
from engram.log.base import Entry, OutEvent


class MemoryLog:
    """See `engram.log.base.Log`. Durable as long as the object; shared by the threads of one process."""

    def __init__(self, app: str, partitions: int) -> None:
        self.app = app
        self.partitions = partitions
        self._lock = threading.Lock()
        self._records: list[list[Record]] = [[] for _ in range(partitions)]
        self._origins: dict[tuple[int, int], Origin] = {}
        self._events: dict[tuple[int, int, int, int], OutEvent] = {}
        self._watches: set[MemoryWatch] = set()

    def append(self, entries: Sequence[Entry]) -> list[int]:
        offsets = []
        with self._lock:
            for entry in entries:
                records = self._records[entry.partition]
                offsets.append(len(records))
                records.append(Record(entry.partition, len(records), entry.kind, entry.time, entry.payload))
                if entry.origin is not None:
                    origin_partition, origin = entry.origin
                    pair = entry.partition, origin_partition
                    self._origins[pair] = max(origin, self._origins.get(pair, origin))
            for watch in self._watches:
                watch.wake()
        return offsets

    def read(self, partition: int, offset: int, *, limit: int) -> list[Record]:
        with self._lock:
            return self._records[partition][offset : offset + limit]

    def end(self, partition: int) -> int:
        return len(self._records[partition])

    def last_origin(self, partition: int, origin_partition: int) -> Origin | None:
        return self._origins.get((partition, origin_partition))

    def emit(self, events: Sequence[OutEvent]) -> None:
        with self._lock:
            for event in events:
                self._events.setdefault(event[:4], event)

    def events(self, partition: int, *, after: tuple[int, int, int], limit: int) -> list[OutEvent]:
        with self._lock:
            later = (e for place, e in self._events.items() if place[0] == partition and place[1:] > after)
            return sorted(later)[:limit]

    def watch(self) -> MemoryWatch:
        watch = MemoryWatch(self._watches)
        with self._lock:
            self._watches.add(watch)
        return watch

    def close(self) -> None:
        """Keeps the records: whoever holds the object may read on."""


class MemoryWatch:
    """A pipe that every append writes to."""

    def __init__(self, others: set[MemoryWatch]) -> None:
        self._others = others
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        return self._read

    def wake(self) -> None:
        try:
            os.write(self._write, b"!")
        except BlockingIOError:
            pass  # full: it is awake already

    def clear(self) -> None:
        drain(self._read)

    def close(self) -> None:
        self._others.discard(self)
        os.close(self._read)
        os.close(self._write)


def drain(fd: int) -> None:
    """Reads a non-blocking pipe empty."""
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        pass
