"""DataFrames with plain values only: for screens, CSV and SQLite, which have no arrays, maps or structs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def plain(frame: Any) -> Any:
    """The same with numbers, booleans and texts. What holds others becomes JSON text; times are as in
    2026-01-31T12:00:00.000000Z; bytes are base64."""
    from pyspark.sql import functions as f
    from pyspark.sql import types as t

    frame = frame.toDF(*distinct(frame.columns))

    def column(field: Any) -> Any:
        of, value = field.dataType, f.col(f"`{field.name.replace('`', '``')}`")
        if isinstance(of, t.StringType | t.BooleanType | t.IntegralType | t.FractionalType):
            return value if not isinstance(of, t.DecimalType) else value.cast("string").alias(field.name)
        if isinstance(of, t.StructType | t.ArrayType | t.MapType | t.VariantType):
            return f.to_json(value).alias(field.name)
        if isinstance(of, t.TimestampType):
            return f.date_format(value, "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'").alias(field.name)
        if isinstance(of, t.BinaryType):
            return f.base64(value).alias(field.name)
        return value.cast("string").alias(field.name)

    return frame.select(*map(column, frame.schema.fields))


def json_lines(frame: Any) -> Any:
    """One column, `row`: each row as a JSON object, with its nulls."""
    from pyspark.sql import functions as f

    frame = frame.toDF(*distinct(frame.columns))
    return frame.select(f.to_json(f.struct("*"), {"ignoreNullFields": "false"}).alias("row"))


def storable(frame: Any) -> Any:
    """For Parquet that anything reads: VARIANT, which few know, becomes JSON text."""
    from pyspark.sql import functions as f
    from pyspark.sql import types as t

    frame = frame.toDF(*distinct(frame.columns))
    for field in frame.schema.fields:
        if isinstance(field.dataType, t.VariantType | t.NullType):
            text = f.to_json(field.name) if isinstance(field.dataType, t.VariantType) else f.lit(None).cast("string")
            frame = frame.withColumn(field.name, text)
    return frame


def distinct(names: Sequence[str]) -> list[str]:
    """No two the same, without regard to case: `a, a` becomes `a, a_2`."""
    found: list[str] = []
    for name in names:
        tries = [name, *(f"{name}_{number}" for number in range(2, len(names) + 2))]
        taken = {each.lower() for each in found}
        found.append(next(each for each in tries if each.lower() not in taken))
    return found
