"""`engram.log`: a row for every command of the log, and for every record without one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain
from json import JSONDecoder
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter
from pyspark.sql.types import StructType

from engram.codec.record import BatchHeader, CommandsHeader, Kind, MessagesHeader, PlainHeader, Record
from engram.log.scan import scan
from engram.model.app import App, entity_of
from engram.spark.frames.batches import Columns, arrow_schema, batched, schema_of
from engram.spark.frames.filters import Bounds
from engram.spark.frames.options import number_of
from engram.spark.frames.source import Reader, Source, Span
from engram.spark.frames.stream import LogStream
from engram.spark.worker import prepare_worker

SCHEMA = (
    "partition INT, offset BIGINT, index INT, position STRING, time TIMESTAMP, kind STRING, entity STRING, "
    "name STRING, version STRING, key STRING, body STRING, session STRING, sequence BIGINT, idempotency_key STRING, "
    "origin STRING, writer STRING, problem STRING"
)
# A task costs about as much as reading so many records of one command.
RECORDS_PER_TASK = 20_000
_TEXTS = ("kind", "entity", "name", "key")
_NUMBERS = ("partition", "offset")


class LogSource(Source):
    """See docs/reference/dataframes.md."""

    form = "engram.log"
    more = ("recordsPerTask", "start", "recordsPerBatch")

    def schema(self) -> StructType:
        return schema_of(SCHEMA)

    def reader(self, schema: StructType) -> DataSourceReader:
        return LogReader(self, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return LogStream(self, read_span)


class LogReader(Reader):
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        return list(self.bounds.take(filters, numbers=_NUMBERS, texts=_TEXTS))

    def partitions(self) -> Sequence[Span]:
        limit = number_of(self.options, "recordsPerTask", LogSource.form, RECORDS_PER_TASK)
        return [
            Span(span.partition, begin, min(begin + limit, span.end))
            for span in self.spans(LogSource.form, there=True)
            for begin in range(span.start, span.end, limit)
        ]

    def read(self, span: Span) -> Iterator[pa.RecordBatch]:
        prepare_worker(self.path)
        return read_span(self.where, span, self.bounds)


def read_span(where: Any, span: Span | Any, bounds: Bounds | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of some records. `span` is what Spark makes up when there is nothing to read, if it is no `Span`."""
    if not isinstance(span, Span):
        return
    bounds = bounds or Bounds()
    schema = arrow_schema(schema_of(SCHEMA))
    with closing(where.open_log(LogSource.form)) as log:
        records = (
            record for record in scan(log, span.partition, span.start, span.end) if bounds.lets("time", record.time)
        )
        rows = RowsOfRecords(entities_of(where.app), bounds.texts)
        for batch in batched(map(rows.columns, records), schema):
            yield bounds.kept(batch, (*_TEXTS, "offset"))


def entities_of(app: App | None) -> dict[str, str]:
    """The entity type of each command, as far as the app's classes are known."""
    if app is None:
        return {}
    return {name: entity_of(cls).__engram__.name or "" for name, cls in app.commands.items()}


class RowsOfRecords:
    """Makes rows of records: from their headers and bodies as they lie there, nothing is brought up."""

    def __init__(self, entities: Mapping[str, str], texts: Mapping[str, Collection[str]] | None = None) -> None:
        """`texts` is what columns may be: the bodies of a record are not decoded if none of its commands will do. Of a
        record that is decoded, all commands are there."""
        self._entities = entities
        self._raw = JSONDecoder().raw_decode
        texts = texts or {}
        self._kinds, self._names, self._keys = (_chosen(texts, column) for column in ("kind", "name", "key"))
        if (of := texts.get("entity")) is not None:
            names = frozenset(name for name, entity in entities.items() if entity in of)
            self._names = names if self._names is None else names & self._names

    def columns(self, record: Record) -> Columns:
        """The columns of `SCHEMA`, without rows for what was not to be decoded."""
        if self._kinds is not None and record.kind not in self._kinds:
            return _no_rows()
        try:
            if record.kind is Kind.COMMANDS or record.kind is Kind.MESSAGES:
                return self._batch(record)
            if record.kind is Kind.PLAIN:
                return self._plain(record)
        except (ValueError, IndexError, StopIteration) as problem:
            where = f"Record {record.offset} of partition {record.partition} cannot be read: {problem}"
            return self._single(record, body=_text(record.payload), problem=where)
        return self._single(record, body=record.payload.decode() if record.payload else None)

    def _batch(self, record: Record) -> Columns:
        head, *lines = record.payload.split(b"\n")
        form = CommandsHeader if record.kind is Kind.COMMANDS else MessagesHeader
        header: Any = form.read(head)
        count = len(header.which)
        if not count:
            return self._single(record)
        if not self._wants(header):
            return _no_rows()
        names = [name for name, _ in header.types]
        versions = [str(version) for _, version in header.types]
        entities = [self._entities.get(name) for name in names]
        partition, offset, which = record.partition, record.offset, header.which
        none: list[Any] = [None] * count
        session: list[Any] = none
        sequence: list[Any] = none
        keys: list[Any] = none
        origin: list[Any] = none
        writer: list[Any] = none
        if isinstance(header, CommandsHeader):
            session = [header.sessions[number] for number in header.session]
            sequence, writer = header.sequence, [header.writer] * count
            keys = [header.idempotency.get(i) for i in range(count)] if header.idempotency else none
        else:
            home = header.origin_partition
            origin = [f"{home}:{o}.{i}.{n}" for o, i, n in header.origins]
        return [
            [partition] * count,
            [offset] * count,
            list(range(count)),
            [f"{partition}:{offset}.{i}" for i in range(count)],
            [record.time] * count,
            [record.kind.value] * count,
            [entities[number] for number in which],
            [names[number] for number in which],
            [versions[number] for number in which],
            header.keys,
            self._bodies(header, lines),
            session,
            sequence,
            keys,
            origin,
            writer,
            none,
        ]

    def _wants(self, header: BatchHeader) -> bool:
        if self._names is not None and self._names.isdisjoint(name for name, _ in header.types):
            return False
        return self._keys is None or not self._keys.isdisjoint(header.keys)

    def _bodies(self, header: BatchHeader, lines: list[bytes]) -> list[str]:
        groups = [self._split(line.decode()) for line in lines]
        bodies = list(groups[0]) if len(groups) == 1 else [next(groups[number]) for number in header.which]
        left = sum(1 for _ in chain.from_iterable(groups))
        if left or len(bodies) != len(header.which):
            raise ValueError(f"{len(bodies) + left} bodies for {len(header.which)} commands")
        return bodies

    def _split(self, line: str) -> Iterator[str]:
        """The texts of an array's items, as they were written."""
        place, end = 1, len(line) - 1
        if not line.startswith("[") or not line.endswith("]"):
            raise ValueError("its bodies are not in an array")
        while place < end:
            _, after = self._raw(line, place)
            yield line[place:after]
            place = after + 1

    def _plain(self, record: Record) -> Columns:
        head, _, body = record.payload.partition(b"\n")
        plain = PlainHeader.read(head)
        columns = self._single(record, body=_text(body), problem=plain.problem or None)
        known = [self._entities.get(plain.name), plain.name, plain.version, plain.key]
        columns[2:4] = [[0], [f"{record.partition}:{record.offset}.0"]]
        columns[6:10] = [[each] for each in known]
        columns[13] = [plain.id]
        return columns

    def _single(self, record: Record, *, body: str | None = None, problem: str | None = None) -> list[list[Any]]:
        time = None if record.kind is Kind.NOTHING else record.time
        columns: list[Any] = [record.partition, record.offset, None, None, time, record.kind.value]
        return [[each] for each in (*columns, None, None, None, None, body, *[None] * 5, problem)]


def _chosen(texts: Mapping[str, Collection[str]], column: str) -> frozenset[str] | None:
    return frozenset(texts[column]) if column in texts else None


def _no_rows() -> Columns:
    return [[] for _ in range(17)]


def _text(payload: bytes) -> str:
    return payload.decode(errors="backslashreplace")
