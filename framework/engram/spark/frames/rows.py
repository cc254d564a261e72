"""`engram.rows`: the rows of a read model, made from the state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pydantic_core
from pyspark.sql.datasource import DataSourceReader, Filter
from pyspark.sql.types import DoubleType, StringType, StructField, StructType

from engram.codec.codec import Codec
from engram.errors import Misuse
from engram.model.app import App
from engram.model.form import form_of
from engram.model.read_model import Ranking, ReadModel, Tally, place_of, row_of, source_of
from engram.model.version import read_version
from engram.spark.frames.batches import ROWS, arrow_schema
from engram.spark.frames.moments import Held, StateSpan
from engram.spark.frames.source import Source
from engram.spark.frames.state import PLACE, StateReader, column_of
from engram.spark.frames.typed import typed


class RowSource(Source):
    """See docs/reference/dataframes.md."""

    form = "engram.rows"
    more = ("model", "at")

    def schema(self) -> StructType:
        self.where.codec(self.form)
        assert self.where.app is not None
        return row_schema(self.where.app, self.options.get("model", ""))

    def reader(self, schema: StructType) -> DataSourceReader:
        return _RowReader(self, schema)


class _RowReader(StateReader):
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        return list(self.bounds.take(filters, numbers=("partition",), texts=(), prefix="_"))

    def batches(self, span: StateSpan, found: Held, codec: Codec | None) -> Iterator[pa.RecordBatch]:
        assert codec is not None
        name = self.options["model"]
        model = model_of(codec.app, name)
        entity = source_of(model).__engram__.name or ""
        schema = arrow_schema(self.spark_schema)
        for batch in self.entities(found, entity).to_batches(max_chunksize=ROWS):
            rows = list(_rows(codec, name, entity, batch))
            place = [span.partition, found.offset]
            columns = [list(column) for column in zip(*((*place, *row) for row in rows), strict=True)]
            if not columns:
                continue
            arrays = [pa.array(values, field.type) for values, field in zip(columns[:-1], schema, strict=False)]
            last = column_of(columns[-1], _last(model), f"{name}.row")
            yield pa.RecordBatch.from_arrays([*arrays, last], schema=schema)


def _rows(codec: Codec, name: str, entity: str, batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """The key of each entity, with what the read model makes of it: a place, perhaps a score, and the row."""
    model, of = model_of(codec.app, name)(), codec.rows[name]
    for key, version, state in zip(*(batch[c].to_pylist() for c in ("key", "version", "state")), strict=True):
        made = model.rows(codec.decode_entity(entity, read_version(version), state.encode()))
        for row in pydantic_core.from_json(of.encode([tuple(each) for each in made])):
            yield (key, *row)


def model_of(app: App, name: str) -> type[ReadModel]:
    model = app.read_models.get(name)
    if model is None:
        raise Misuse(
            f"{app.name} has no read model {name!r}: write the option model, one of "
            f"{', '.join(sorted(app.read_models)) or 'none'}."
        )
    return model


def row_schema(app: App, name: str) -> StructType:
    """Where a row is from, where it is found, its score if it is a ranking's, and itself."""
    model = model_of(app, name)
    score = [StructField("score", DoubleType())] if issubclass(model, Ranking) else []
    last = StructField("number" if issubclass(model, Tally) else "row", _last(model).spark)
    return StructType(
        [*PLACE, StructField("of", StringType()), StructField(place_of(model), StringType()), *score, last]
    )


def _last(model: type[ReadModel]) -> Any:
    return typed(form_of(float if issubclass(model, Tally) else row_of(model)))
