"""`engram.state`: a row for every entity, as typed columns of one type, or as JSON text or VARIANT."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pydantic_core
from pyspark.sql.datasource import DataSourceReader, Filter
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from engram.codec.codec import Codec
from engram.errors import Corrupt, Misuse
from engram.model.app import App
from engram.model.form import Struct, fields_of
from engram.model.version import read_version
from engram.spark.frames.batches import ROWS, arrow_schema, schema_of
from engram.spark.frames.moments import Held, Moments, StateSpan, held
from engram.spark.frames.source import Reader, Source
from engram.spark.frames.typed import VARIANT, Typed, typed
from engram.spark.worker import prepare_worker

SCHEMA = "partition INT, offset BIGINT, entity STRING, key STRING, version STRING, state STRING"
# What the option state may be.
_JSON, _VARIANT = "json", "variant"
# Before an entity's own fields, which may have these names too.
PLACE = [StructField("_partition", IntegerType()), StructField("_offset", LongType())]
_TEXTS = ("entity", "key")


class StateSource(Source):
    """See docs/reference/dataframes.md."""

    form = "engram.state"
    more = ("entity", "at", "state")

    def schema(self) -> StructType:
        entity = self.options.get("entity", "")
        form = self.options.get("state", _JSON)
        if form not in (_JSON, _VARIANT) or (entity and "state" in self.options):
            instead = "only without entity" if entity else f"{_JSON} or {_VARIANT}, not {form!r}"
            raise Misuse(f"The option state of {self.form} is {instead}.")
        if not entity:
            *place, state = schema_of(SCHEMA)
            return StructType([*place, StructField(state.name, VARIANT.spark) if form == _VARIANT else state])
        self.where.codec("The option entity")
        assert self.where.app is not None
        return entity_schema(self.where.app, entity)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _TypedReader(self, schema) if self.options.get("entity") else _TextReader(self, schema)


class StateReader(Reader):
    """Reads the state at a moment, partition by partition."""

    prefix = ""

    def partitions(self) -> Sequence[StateSpan]:
        spans = Moments(self.where, self.options.get("at", "")).spans()
        return [span for span in spans if self.bounds.lets("partition", span.partition)]

    def read(self, span: Any) -> Iterator[pa.RecordBatch]:
        prepare_worker(self.path)
        if isinstance(span, StateSpan):
            codec = None if self.where.app is None else Codec(self.where.app)
            yield from self.batches(span, held(span, self.where, codec), codec)

    def batches(self, span: StateSpan, found: Held, codec: Codec | None) -> Iterator[pa.RecordBatch]:
        raise NotImplementedError

    def entities(self, found: Held, entity: str = "") -> pa.Table:
        """What the filters let through, of one type or of all."""
        table = found.entities.select(["entity", "key", "version", "state"])
        wanted = {**self.bounds.texts, **({"entity": frozenset([entity])} if entity else {})}
        for column in _TEXTS:
            if column in wanted:
                table = table.filter(pc.is_in(table[column], pa.array(sorted(wanted[column]), pa.string())))
        return table.combine_chunks()


class _TextReader(StateReader):
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        return list(self.bounds.take(filters, numbers=("partition",), texts=_TEXTS))

    def batches(self, span: StateSpan, found: Held, codec: Codec | None) -> Iterator[pa.RecordBatch]:
        schema = arrow_schema(self.spark_schema)
        for batch in self.entities(found).to_batches(max_chunksize=ROWS):
            *names, state = batch.columns
            if self.options.get("state") == _VARIANT:
                state = VARIANT.array(state.to_pylist())
            yield pa.RecordBatch.from_arrays([*_placed(span, found, len(batch)), *names, state], schema=schema)


class _TypedReader(StateReader):
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        rest = list(self.bounds.take(filters, numbers=("partition",), texts=(), prefix="_"))
        return list(self.bounds.take(rest, numbers=(), texts=("key",)))

    def batches(self, span: StateSpan, found: Held, codec: Codec | None) -> Iterator[pa.RecordBatch]:
        assert codec is not None
        entity = self.options["entity"]
        fields = entity_fields(codec.app, entity)
        schema = arrow_schema(self.spark_schema)
        for batch in self.entities(found, entity).to_batches(max_chunksize=ROWS):
            states = current(codec, entity, batch)
            columns = [
                column_of([state.get(place) for state in states], of, f"{entity}.{name}")
                for name, (place, of) in fields.items()
            ]
            yield pa.RecordBatch.from_arrays([*_placed(span, found, len(batch)), *columns], schema=schema)


def entity_schema(app: App, entity: str) -> StructType:
    """The typed columns of an entity type. Raises `Misuse` for one that the app does not have."""
    return StructType([*PLACE, *(StructField(n, of.spark) for n, (_, of) in entity_fields(app, entity).items())])


def entity_fields(app: App, entity: str) -> dict[str, tuple[str, Typed]]:
    """The fields of an entity type: where each is in the JSON, and what it is in Spark."""
    cls = app.entities.get(entity)
    if cls is None:
        raise Misuse(f"{app.name} has no entity {entity!r}: it has {', '.join(sorted(app.entities)) or 'none'}.")
    fields = fields_of(Struct(cls))
    return {name: (field.alias or name, typed(field.form, frozenset([cls]))) for name, field in fields.items()}


def current(codec: Codec, entity: str, batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The states of entities as JSON objects of today's version."""
    now = str(codec.version_of(codec.app.entities[entity]))
    versions = batch["version"].to_pylist()
    states = batch["state"].to_pylist()
    if any(version != now for version in versions):
        states = [
            state if version == now else _brought_up(codec, entity, version, state)
            for version, state in zip(versions, states, strict=True)
        ]
    found: list[dict[str, Any]] = pydantic_core.from_json("[" + ",".join(states) + "]")
    return found


def _brought_up(codec: Codec, entity: str, version: str, state: str) -> str:
    old = codec.decode_entity(entity, read_version(version), state.encode())
    return codec.encode_entity(old).decode()


def column_of(values: Sequence[Any], of: Typed, name: str) -> pa.Array:
    """Raises `Corrupt` for values that Spark's type cannot hold."""
    try:
        return of.array(values)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as problem:
        raise Corrupt(
            f"{name} is {of.spark.simpleString()} in Spark, and has values that are not: {problem}. Read the state as "
            "JSON text: leave out the option entity, or use the table state."
        ) from problem


def _placed(span: StateSpan, found: Held, count: int) -> list[pa.Array]:
    return [pa.repeat(pa.scalar(span.partition, pa.int32()), count), pa.repeat(pa.scalar(found.offset), count)]
