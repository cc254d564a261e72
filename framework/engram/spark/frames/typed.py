"""An app's types as Spark's: columns made of JSON, all values of a column at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain
from typing import Any, NamedTuple
from uuid import UUID

import pyarrow as pa
import pydantic_core
from pydantic import BaseModel
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)
from pyspark.sql.variant_utils import VariantUtils

from engram.model.form import Bounded, Choice, Entries, Form, Items, OneOf, Plain, Row, Struct, fields_of
from engram.spark.frames.batches import arrow_type

Values = Sequence[Any]
# In JSON these are texts, and Spark has no type that takes all of their values.
_TEXTS = (str, time, timedelta, Decimal, UUID, bytes)


class Typed(NamedTuple):
    """A type of Spark's, and how an array of it is made of what JSON has. Raises `ValueError` or `TypeError` (or
    Arrow's kinds of them) for values that are not of the type."""

    spark: DataType
    array: Callable[[Values], pa.Array]


def typed(form: Form, above: frozenset[Any] = frozenset()) -> Typed:  # noqa: PLR0911 - one return per kind of form
    """What a form is in Spark. What has no type there is JSON text: unions, `Any`, recursive classes, and what
    writes its JSON with code of its own."""
    match form:
        case Plain(tp):
            return _plain(tp)
        case Choice(values):
            return _choice(values)
        case OneOf(members):
            some = [member for member in members if not _is_none(member)]
            return typed(some[0], above) if len(some) == 1 else JSON_TEXT
        case Bounded(inner, metadata):
            own = any(type(each).__name__.endswith("Serializer") for each in metadata)
            return JSON_TEXT if own else typed(inner, above)
        case Items(_, item):
            return _list(typed(item, above))
        case Row(items):
            return _struct({f"_{n}": (n - 1, typed(item, above)) for n, item in enumerate(items, 1)})
        case Entries(key, item):
            # A dict without values is how state has a set: see `engram.model.shape`.
            return _keys(_key(key)) if _is_none(item) else _map(_key(key), typed(item, above))
        case Struct(cls):
            if cls in above or _writes_itself(cls):
                return JSON_TEXT
            fields = fields_of(form)
            places: list[Any] = list(range(len(fields))) if form.is_array else [f.alias or n for n, f in fields.items()]
            inner_types = [typed(field.form, above | {cls}) for field in fields.values()]
            return _struct(dict(zip(fields, zip(places, inner_types, strict=True), strict=True)))


def _is_none(form: Form) -> bool:
    return isinstance(form, Plain) and form.type in (None, type(None))


def _writes_itself(cls: Any) -> bool:
    decorators = cls.__pydantic_decorators__ if issubclass(cls, BaseModel) else None
    return decorators is not None and bool(decorators.model_serializers or decorators.field_serializers)


def _simple(spark: DataType) -> Typed:
    of = arrow_type(spark)
    return Typed(spark, lambda values: pa.array(values, of))


def _json(values: Values) -> pa.Array:
    return pa.array([None if v is None else pydantic_core.to_json(v).decode() for v in values], pa.string())


def _variants(values: Values) -> pa.Array:
    made = [VariantUtils.parse_json(value) for value in values]
    return pa.array([{"value": v, "metadata": m} for v, m in made], arrow_type(VariantType()))


TEXT = _simple(StringType())
JSON_TEXT = Typed(StringType(), _json)
INTEGER = _simple(LongType())
# Of JSON text. It is made in Python, some thousands in a second.
VARIANT = Typed(VariantType(), _variants)


def _plain(tp: Any) -> Typed:
    if tp is bool:
        return _simple(BooleanType())
    if tp is int:
        return INTEGER
    if tp is float:
        return Typed(DoubleType(), _doubles)
    if tp is datetime:
        return Typed(TimestampType(), _moments)
    if tp is date:
        return Typed(DateType(), lambda values: pa.array(values, pa.string()).cast(pa.date32()))
    return TEXT if tp in _TEXTS else JSON_TEXT


def _doubles(values: Values) -> pa.Array:
    return pa.array([None if v is None else float(v) for v in values], pa.float64())  # NaN and infinities are texts


def _moments(values: Values) -> pa.Array:
    texts = pa.array(values, pa.string())
    try:
        return texts.cast(pa.timestamp("us", "UTC"))
    except pa.ArrowInvalid:  # without a zone, which is taken for UTC
        moments = [None if v is None else datetime.fromisoformat(v) for v in values]
        return pa.array([m and (m if m.tzinfo else m.replace(tzinfo=UTC)) for m in moments], pa.timestamp("us", "UTC"))


def _choice(values: tuple[Any, ...]) -> Typed:
    kinds = {type(value) for value in values if value is not None}
    if all(issubclass(kind, str) for kind in kinds):
        return TEXT
    return INTEGER if kinds == {int} else JSON_TEXT


def _key(form: Form) -> Typed:
    """Of a dict's keys, which JSON has as texts."""
    whole = typed(form)
    if whole is INTEGER:
        return Typed(whole.spark, lambda values: whole.array([int(value) for value in values]))
    return TEXT


def _offsets(values: Values) -> pa.Array:
    """Of the items of each value in all items, one after the other; null where there is no value."""
    found: list[int | None] = []
    place = 0
    for value in values:
        found.append(None if value is None else place)
        place += 0 if value is None else len(value)
    return pa.array([*found, place], pa.int32())


def _there(values: Values) -> list[Any]:
    return [value for value in values if value is not None]


def _list(item: Typed) -> Typed:
    spark = ArrayType(item.spark)
    of = arrow_type(spark)

    def array(values: Values) -> pa.Array:
        items = item.array(list(chain.from_iterable(_there(values))))
        return pa.ListArray.from_arrays(_offsets(values), items, type=of)

    return Typed(spark, array)


def _keys(key: Typed) -> Typed:
    return _list(key)  # an object's keys are what iterating over it gives


def _map(key: Typed, item: Typed) -> Typed:
    spark = MapType(key.spark, item.spark)
    of = arrow_type(spark)

    def array(values: Values) -> pa.Array:
        there = _there(values)
        keys = key.array(list(chain.from_iterable(there)))
        items = item.array(list(chain.from_iterable(value.values() for value in there)))
        return pa.MapArray.from_arrays(_offsets(values), keys, items, type=of)

    return Typed(spark, array)


def _struct(fields: dict[str, tuple[Any, Typed]]) -> Typed:
    """`fields` has where each is in the JSON: a place in an array, or a name in an object."""
    if not fields:
        return JSON_TEXT
    spark = StructType([StructField(name, of.spark) for name, (_, of) in fields.items()])
    inner = list(arrow_type(spark))

    def array(values: Values) -> pa.Array:
        arrays = [of.array([_at(value, place) for value in values]) for place, of in fields.values()]
        missing = pa.array([value is None for value in values], pa.bool_())
        return pa.StructArray.from_arrays(arrays, fields=inner, mask=missing)

    return Typed(spark, array)


def _at(value: Any, place: Any) -> Any:
    if value is None:
        return None
    return value.get(place) if isinstance(value, dict) else value[place]
