"""Rows on their way to Spark, as Arrow record batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type
from pyspark.sql.types import (
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

# Enough for Arrow to be worth it, few enough that a task needs little memory for rows with large bodies.
ROWS = 10_000
# The last moment of year 9999, in milliseconds: no calendar of Spark's or Python's goes further.
_LAST = 253_402_300_799_999

_TYPES = {
    "INT": IntegerType,
    "BIGINT": LongType,
    "STRING": StringType,
    "TIMESTAMP": TimestampType,
    "BOOLEAN": BooleanType,
}

Columns = Sequence[list[Any]]


def schema_of(ddl: str) -> StructType:
    """A schema as Spark writes it, such as `partition INT, offset BIGINT`. (Spark's own parser is in its JVM, and a
    schema is asked for where there is none.)"""
    fields = [field.split() for field in ddl.split(", ")]
    return StructType([StructField(name, _TYPES[of]()) for name, of in fields])


def arrow_schema(schema: StructType) -> pa.Schema:
    """As Spark wants the batches of a data source with this schema."""
    return to_arrow_schema(schema, timezone="UTC")


def arrow_type(of: DataType) -> pa.DataType:
    return to_arrow_type(of, timezone="UTC")


def times(milliseconds: Iterable[int | None]) -> pa.Array:
    """Moments in UTC; what is on no calendar is null."""
    known = [each if each is not None and 0 <= each <= _LAST else None for each in milliseconds]
    return pa.array(known, pa.int64()).cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))


def batch_of(columns: Columns, schema: pa.Schema) -> pa.RecordBatch:
    """One batch. A column of timestamps is given as milliseconds since 1970."""
    arrays = [
        times(values) if pa.types.is_timestamp(field.type) else pa.array(values, field.type)
        for values, field in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def batched(pieces: Iterable[Columns], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Batches of about `ROWS` rows out of pieces of any size."""
    columns: list[list[Any]] = [[] for _ in schema]
    for piece in pieces:
        for column, values in zip(columns, piece, strict=True):
            column.extend(values)
        if len(columns[0]) >= ROWS:
            yield batch_of(columns, schema)
            columns = [[] for _ in schema]
    if columns[0]:
        yield batch_of(columns, schema)
