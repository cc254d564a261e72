"""All records of a stretch of a log, read in pieces: one `read` may bring fewer than it was asked for."""

from __future__ import annotations

from collections.abc import Iterator

from engram.codec.record import Record
from engram.log.base import Log

_RECORDS_AT_ONCE = 1000


def scan(log: Log, partition: int, start: int | None = None, end: int | None = None) -> Iterator[Record]:
    """The records from `start` up to `end`, in order; by default all that are there, up to where the log ends when it
    gets there."""
    start = log.start(partition) if start is None else start
    while end is None or start < end:
        limit = _RECORDS_AT_ONCE if end is None else min(_RECORDS_AT_ONCE, end - start)
        records = log.read(partition, start, limit=limit)
        if not records:
            return
        yield from records
        start = records[-1].offset + 1
