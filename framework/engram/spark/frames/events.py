"""`engram.events`: a row for every event that has left the app."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import takewhile
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, SimpleDataSourceStreamReader
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from engram.errors import Misuse
from engram.log.base import Log
from engram.log.cursor import END, START, Cursor, Place, cursor_of, place_of
from engram.log.stream import EventReader, cause_of, id_of
from engram.model.effects import OutEvent
from engram.spark.frames.batches import ROWS, Columns, arrow_schema, batch_of, schema_of
from engram.spark.frames.filters import Bounds
from engram.spark.frames.options import Where
from engram.spark.frames.source import Reader, Source, Span
from engram.spark.worker import prepare_worker

SCHEMA = (
    "partition INT, offset BIGINT, index INT, number INT, id STRING, time TIMESTAMP, name STRING, version STRING, "
    "key STRING, body STRING, cause STRING, root STRING"
)
_TEXTS = ("name", "key")
_NUMBERS = ("partition", "offset")
_BEFORE_ALL = -(10**9)  # timers have indices below zero


class EventSource(Source):
    """See docs/reference/dataframes.md."""

    form = "engram.events"
    more = ("start",)

    def schema(self) -> StructType:
        return schema_of(SCHEMA)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _EventReader(self, schema)

    def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:  # noqa: N802 - Spark's name
        return EventStream(self.where, self.options.get("start", START))


class _EventReader(Reader):
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        return list(self.bounds.take(filters, numbers=_NUMBERS, texts=_TEXTS))

    def partitions(self) -> Sequence[Span]:
        return self.spans(EventSource.form)

    def read(self, span: Any) -> Iterator[pa.RecordBatch]:
        prepare_worker(self.path)
        if not isinstance(span, Span):  # Spark's own, when there is nothing to read
            return
        with closing(self.where.open_log(EventSource.form)) as log:
            for page in _pages(log, span):
                found = [event for event in page if self.bounds.lets("time", event.time)]
                yield _kept(self.bounds, found)


class EventStream(SimpleDataSourceStreamReader, SupportsTriggerAvailableNow):
    """All events as one stream, read where the job is planned: a place in it is a cursor, as readers of `/events` have
    one. `start` is `start`, `end`, or a cursor."""

    def __init__(self, where: Where, start: str) -> None:
        self._where = where
        self._start = start
        self._log: Log | None = None
        self._reader: EventReader | None = None
        self._until: list[int] | None = None  # records from there on are not for this run

    def initialOffset(self) -> dict[str, str]:  # noqa: N802 - Spark's name
        return {"cursor": str(cursor_of(self._start, self._opened()))}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        log = self._opened()
        self._until = [log.end(partition) for partition in range(log.partitions)]

    def read(self, start: dict[str, str]) -> tuple[Iterator[pa.RecordBatch], dict[str, str]]:
        log = self._opened()
        if self._reader is None or str(self._reader.cursor) != start["cursor"]:
            self._reader = EventReader(log, _checked(start, log))
        events = self._reader.read(ROWS)
        if self._until is not None:
            events = [event for event in events if event.offset < self._until[event.partition]]
        cursor = _checked(start, log)
        for event in events:
            cursor = cursor.past(event)
        return iter([_batch(events)] if events else []), {"cursor": str(cursor)} if events else start

    def readBetweenOffsets(  # noqa: N802 - Spark's name
        self, start: dict[str, str], end: dict[str, str]
    ) -> Iterator[pa.RecordBatch]:
        log = self._opened()
        after, last = _checked(start, log), _checked(end, log)
        for partition in range(log.partitions):
            for page in _after(log, partition, after.place(partition)):
                events = [event for event in page if place_of(event) <= last.place(partition)]
                if events:
                    yield _batch(events)
                if len(events) < len(page):
                    break

    def _opened(self) -> Log:
        if self._log is None:
            self._log = self._where.open_log(EventSource.form)
        return self._log


def _checked(place: dict[str, str], log: Log) -> Cursor:
    if place["cursor"] in (START, END):
        raise Misuse("The checkpoint has no cursor: use another checkpoint.")
    return cursor_of(place["cursor"], log)


def _after(log: Log, partition: int, place: Place) -> Iterator[list[OutEvent]]:
    while page := log.events(partition, after=place, limit=ROWS):
        yield page
        place = place_of(page[-1])


def _pages(log: Log, span: Span) -> Iterator[list[OutEvent]]:
    for page in _after(log, span.partition, Place(span.start - 1, -_BEFORE_ALL, 0)):
        found = list(takewhile(lambda event: event.offset < span.end, page))
        if found:
            yield found
        if len(found) < len(page):
            return


def _kept(bounds: Bounds, events: list[OutEvent]) -> pa.RecordBatch:
    return bounds.kept(_batch(events), (*_TEXTS, "offset"))


def _batch(events: Sequence[OutEvent]) -> pa.RecordBatch:
    return batch_of(_columns(events), arrow_schema(schema_of(SCHEMA)))


def _columns(events: Sequence[OutEvent]) -> Columns:
    rows = [
        (*e[:4], id_of(e), e.time, e.name, str(e.version), e.key, e.body.decode(), cause_of(e), e.root) for e in events
    ]
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(12)]
