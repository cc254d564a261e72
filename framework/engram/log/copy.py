"""Copying a whole log to a new one, place by place, whatever the two are kept in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from engram.codec.record import Kind, MessagesHeader, Origin, Record
from engram.errors import Corrupt, EngramError, Misuse
from engram.log.base import Entry, Log
from engram.model.effects import OutEvent

_READ_RECORDS = 1000
_EVENTS_AT_ONCE = 1000
# Partitions that are appended to side by side where they are stored apart. On Kafka, with records of 100 kB, one gave
# 37 MB/s and eight 124. Each may have `READ_BYTES` in memory.
_SIDE_BY_SIDE = 8


class Copied(NamedTuple):
    """What the copy has of a partition: so many records and events, from the first on."""

    partition: int
    records: int
    events: int


class Progress(NamedTuple):
    """How far a copy is: records that are copied, records that are to be, the bytes in the former; and events."""

    records: int
    of: int
    size: int
    events: int


def copy_log(source: Log, target: Log, *, progress: Callable[[Progress], None]) -> list[Copied]:
    """Copies all records with their positions, kinds, times and origins, and all events in their order.

    The source may be written to meanwhile. Then the copy has the records that were there at the start, and those that
    messages among these came from: without them a new owner would use their offsets again, and its messages would be
    taken for old ones. Events are those of these records, as far as they are out.

    Raises `Misuse` when the target has records or events, or another number of partitions; nothing is written then.
    Raises `Corrupt` when the source misses a record, or the target gave one another place. After such an error, or
    `Unavailable`, the target is not whole, and says nothing about that: it must not be used.
    """
    _check_empty(source, target)
    copying = _Copying(source, target)
    try:
        while copying.copy_some():
            progress(copying.progress)
        for partition in range(source.partitions):
            for _ in copying.copy_events(partition):
                progress(copying.progress)
        return [Copied(*part) for part in zip(range(source.partitions), copying.done, copying.events, strict=True)]
    except EngramError as problem:
        if not any(copying.done):
            raise
        raise type(problem)(f"{problem} The copy is not whole: remove it, and copy again.") from problem


def event_pages(log: Log, partition: int) -> Iterator[list[OutEvent]]:
    """All events of a partition, in order."""
    after = (-1, -1, -1)
    while page := log.events(partition, after=after, limit=_EVENTS_AT_ONCE):
        yield page
        after = page[-1][1:4]


def _check_empty(source: Log, target: Log) -> None:
    if target.partitions != source.partitions:
        raise Misuse(
            f"The log to copy has {source.partitions} partitions and the one to copy to {target.partitions}: records "
            "keep their positions, so the number must be the same. Copy to a new log."
        )
    records = sum(map(target.end, range(target.partitions)))
    if records or any(target.events(p, after=(-1, -1, -1), limit=1) for p in range(target.partitions)):
        raise Misuse(
            f"The log to copy to is not empty: it has {records:,} records. Copy to a new one; or remove it, if it "
            "is what an unfinished copy left."
        )


class _Copying:
    """Partitions on their way: `done` records of each, of `ends`, and after them `events`."""

    def __init__(self, source: Log, target: Log) -> None:
        self._source = source
        self._target = target
        self._lanes = _SIDE_BY_SIDE if target.independent else 1
        self.ends = [source.end(partition) for partition in range(source.partitions)]
        self.done = [0] * source.partitions
        self.events = [0] * source.partitions
        self.size = 0

    @property
    def progress(self) -> Progress:
        return Progress(sum(self.done), sum(self.ends), self.size, sum(self.events))

    def copy_some(self) -> bool:
        """Copies the next records; False if there are none."""
        behind = [partition for partition, end in enumerate(self.ends) if self.done[partition] < end]
        records = [record for partition in behind[: self._lanes] for record in self._next(partition)]
        entries = [Entry(r.partition, r.kind, r.time, r.payload, _origin(r)) for r in records]
        offsets = self._target.append(entries) if entries else []
        for record, offset in zip(records, offsets, strict=True):
            if offset != record.offset:
                raise Corrupt(
                    f"Record {record.offset} of partition {record.partition} came to place {offset} in the copy: "
                    "somebody else writes to it."
                )
            self.done[record.partition] += 1
            self.size += len(record.payload)
        for entry in entries:
            self._need(entry)
        return bool(records)

    def copy_events(self, partition: int) -> Iterator[None]:
        """Copies the events of the records that were copied, some at each step."""
        for page in event_pages(self._source, partition):
            events = [event for event in page if event.offset < self.done[partition]]
            if events:
                self._target.append([], events)
                self.events[partition] += len(events)
                yield
            if len(events) < len(page):
                return

    def _next(self, partition: int) -> list[Record]:
        start, end = self.done[partition], self.ends[partition]
        records = self._source.read(partition, start, limit=min(_READ_RECORDS, end - start))
        wrong = [offset for offset, record in enumerate(records, start) if record.offset != offset]
        if wrong or not records:
            missing = wrong[0] if wrong else start
            raise Corrupt(
                f"Record {missing} of partition {partition} is not in the log, but there are traces of records up to "
                f"{end - 1}: it was cut, or is an older copy."
            )
        return records

    def _need(self, entry: Entry) -> None:
        if entry.origin is None:
            return
        partition, origin = entry.origin
        if not 0 <= partition < len(self.ends):
            raise Corrupt(f"Partition {entry.partition} has messages from partition {partition}, which is not there.")
        self.ends[partition] = max(self.ends[partition], origin.offset + 1)


def _origin(record: Record) -> tuple[int, Origin] | None:
    """For messages the last one's origin and the partition it is of, as `Entry` has it. Raises `Corrupt`."""
    if record.kind is not Kind.MESSAGES:
        return None
    try:
        header = MessagesHeader.read(record.payload.partition(b"\n")[0])
        return header.origin_partition, Origin(*header.origin(-1))
    except (ValueError, IndexError) as problem:
        where = f"Record {record.offset} of partition {record.partition}"
        raise Corrupt(f"{where} does not say where its messages are from.") from problem
