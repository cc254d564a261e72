"""`engram.replies`: what became of every command of a client, found by handling the log again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter
from pyspark.sql.types import StructType

from engram.codec.codec import Codec, Commands
from engram.codec.record import Record
from engram.errors import Misuse
from engram.image.image import Handled, Image
from engram.image.outcome import Verdict
from engram.log.base import Log
from engram.log.scan import scan
from engram.shard.past import Moment, check_own, image_at
from engram.spark.frames.batches import Columns, arrow_schema, batched, schema_of
from engram.spark.frames.log import entities_of
from engram.spark.frames.source import Reader, Source, Span
from engram.spark.worker import prepare_worker

SCHEMA = (
    "partition INT, offset BIGINT, index INT, position STRING, time TIMESTAMP, entity STRING, name STRING, key STRING, "
    "verdict STRING, code STRING, body STRING, repeated BOOLEAN, session STRING, sequence BIGINT"
)
_TEXTS = ("entity", "name", "key", "verdict", "code")
_NUMBERS = ("partition", "offset")


class ReplySource(Source):
    """See docs/reference/dataframes.md."""

    form = "engram.replies"
    more = ("versions",)

    def schema(self) -> StructType:
        self.where.codec(self.form)
        if self.options.get("versions", "own") not in ("own", "any"):
            raise Misuse(f"The option versions of {self.form} is own or any, not {self.options['versions']!r}.")
        return schema_of(SCHEMA)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _ReplyReader(self, schema)


class _ReplyReader(Reader):
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        return list(self.bounds.take(filters, numbers=_NUMBERS, texts=_TEXTS))

    def partitions(self) -> Sequence[Span]:
        """One for each partition: a record can be handled only after all before it, or after a snapshot."""
        return self.spans(ReplySource.form)

    def read(self, span: Any) -> Iterator[pa.RecordBatch]:
        prepare_worker(self.path)
        if not isinstance(span, Span):  # Spark's own, when there is nothing to read
            return
        codec = self.where.codec(ReplySource.form)
        any_version = self.options.get("versions") == "any"
        with closing(self.where.open_log(ReplySource.form)) as log:
            store = self.where.store_if_any()
            before = Moment(span.start)
            image = image_at(before, span.partition, codec, log, store, any_version=any_version)
            rows = self._rows(image, log, span.end, any_version=any_version)
            for batch in batched(rows, arrow_schema(schema_of(SCHEMA))):
                yield self.bounds.kept(batch, (*_TEXTS, "offset"))

    def _rows(self, image: Image, log: Log, end: int, *, any_version: bool) -> Iterator[Columns]:
        entities = entities_of(image.app)
        for record in scan(log, image.partition, image.offset, end):
            if not any_version:
                check_own(image, record)
            handled = image.handle(record)
            if handled.outcomes and self.bounds.lets("time", record.time):
                yield _columns(image.codec, record, handled, entities)


def _columns(codec: Codec, record: Record, handled: Handled, entities: dict[str, str]) -> Columns:
    content = codec.decode_record(record)
    assert isinstance(content, Commands)
    header, count = content.header, len(handled.outcomes)
    names = [name for name, _ in header.types]
    partition, offset = record.partition, record.offset
    verdicts = [outcome.verdict for outcome in handled.outcomes]
    return [
        [partition] * count,
        [offset] * count,
        list(range(count)),
        [f"{partition}:{offset}.{index}" for index in range(count)],
        [record.time] * count,
        [entities.get(names[number]) for number in header.which],
        [names[number] for number in header.which],
        list(header.keys),
        [verdict.value for verdict in verdicts],
        [json.loads(o.body)["code"] if o.verdict is Verdict.REJECTED else None for o in handled.outcomes],
        [outcome.body.decode() for outcome in handled.outcomes],
        [index in handled.repeats for index in range(count)],
        [header.sessions[number] for number in header.session],
        list(header.sequence),
    ]
