"""An app's types as Spark's columns, and filters that are pushed down: without any Spark."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, Literal, NamedTuple
from uuid import UUID

import pyarrow as pa
import pytest
from engram import App, Command, Context, Corrupt, Entity, Misuse, Part, upcaster
from engram.codec.codec import Codec
from engram.image.contents import EntityColumns
from engram.snapshots.parquet import table_of
from engram.spark.frames.filters import Bounds
from engram.spark.frames.options import Where
from engram.spark.frames.state import StateSource, column_of, current, entity_fields, entity_schema
from engram.spark.frames.typed import INTEGER, VARIANT
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual
from pyspark.sql.types import VariantVal


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Grade(IntEnum):
    GOOD = 1
    BAD = 6


class Point(NamedTuple):
    x: int
    y: float | None


@dataclass(slots=True, kw_only=True)
class Leaf(Part):
    text: str
    at: datetime | None = None
    tags: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Tree(Part):
    name: str = ""
    below: list[Tree] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Thing(Entity, name="thing", version=2):
    number: int = 0
    size: float = 0.0
    good: bool = False
    name: str | None = None
    since: datetime | None = None
    day: date | None = None
    took: timedelta = timedelta(0)
    price: Decimal = Decimal(0)
    number_of: UUID | None = None
    raw: bytes = b""
    colour: Colour = Colour.RED
    grade: Grade = Grade.GOOD
    mood: Literal["up", "down"] = "up"
    either: int | str = 0
    point: Point | None = None
    pair: tuple[str, int] = ("", 0)
    names: list[str] = field(default_factory=list)
    leaves: dict[str, Leaf] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    chosen: dict[str, None] = field(default_factory=dict)
    grid: list[list[int]] = field(default_factory=list)
    tree: Tree = field(default_factory=Tree)


class Make(Command[Thing, None], name="make"):
    def handle(self, thing: Thing, ctx: Context) -> None:
        pass


@upcaster(Thing, from_version=1)
def names_were_one(old: dict[str, Any]) -> dict[str, Any]:
    return {**old, "names": [old["names"]]}


app = App("things", commands=[Make], upcasters=[names_were_one])
CODEC = Codec(app)

long = st.integers(-(2**63), 2**63 - 1)
text = st.text(st.characters(codec="utf-8"), max_size=8)
moments = st.datetimes(datetime(1900, 1, 1), datetime(9999, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - a bound
things = st.builds(
    Thing,
    key=text,
    number=long,
    size=st.floats(allow_nan=False),
    good=st.booleans(),
    name=st.none() | text,
    since=st.none() | moments,
    day=st.none() | st.dates(date(1900, 1, 1)),
    took=st.timedeltas(timedelta(-100), timedelta(100)),
    price=st.decimals(allow_nan=False, allow_infinity=False, places=2),
    number_of=st.uuids(),
    raw=st.binary(max_size=5),
    colour=st.sampled_from(Colour),
    grade=st.sampled_from(Grade),
    either=long | text,
    point=st.none() | st.builds(Point, long, st.none() | st.floats(allow_nan=False)),
    pair=st.tuples(text, long),
    names=st.lists(text, max_size=3),
    leaves=st.dictionaries(text, st.builds(Leaf, text=text, at=st.none() | moments, tags=st.lists(text, max_size=2))),
    counts=st.dictionaries(long, long, max_size=3),
    chosen=st.dictionaries(text, st.none(), max_size=3),
    grid=st.lists(st.lists(long, max_size=2), max_size=2),
    tree=st.builds(Tree, name=text, below=st.lists(st.builds(Tree, name=text), max_size=2)),
)


def columns(made: list[Thing]) -> dict[str, list[Any]]:
    states = [CODEC.encode_entity(thing) for thing in made]
    table = table_of([EntityColumns("thing", 2, [thing.key for thing in made], states)])
    (batch,) = table.combine_chunks().to_batches()
    found = current(CODEC, "thing", batch)
    return {
        name: column_of([state.get(place) for state in found], of, name).to_pylist()
        for name, (place, of) in entity_fields(app, "thing").items()
    }


def expected(thing: Thing) -> dict[str, Any]:
    """What Python has of a row in Arrow: maps are lists of pairs."""
    state = json.loads(CODEC.encode_entity(thing))
    return {
        **{name: getattr(thing, name) for name in ("key", "number", "size", "good", "name", "since", "day", "names")},
        **{name: state[name] for name in ("took", "price", "number_of", "raw", "colour", "grade", "mood")},
        "point": None if thing.point is None else {"x": thing.point.x, "y": thing.point.y},
        "pair": {"_1": thing.pair[0], "_2": thing.pair[1]},
        "leaves": [(key, {"text": e.text, "at": e.at, "tags": e.tags}) for key, e in thing.leaves.items()],
        "counts": list(thing.counts.items()),
        "chosen": list(thing.chosen),
        "grid": thing.grid,
    }


@given(st.lists(things, min_size=1, max_size=4))
@settings(max_examples=60)
def test_every_state_is_the_same_as_columns(made: list[Thing]):
    """Numbers, times, enums, tuples, parts, lists and dicts of them; what Spark has no type for is JSON text."""
    found = columns(made)

    for number, thing in enumerate(made):
        row = {name: values[number] for name, values in found.items()}
        assert json.loads(row.pop("either")) == thing.either
        tree = row.pop("tree")
        below = [json.loads(one) for one in tree["below"]]
        assert {**tree, "below": below} == json.loads(CODEC.encode_entity(thing))["tree"]
        assert row == expected(thing)


@given(things)
@settings(max_examples=30)
def test_every_state_is_the_same_as_variant(made: Thing):
    """What Python makes of it is what it makes of the JSON; short fractions are decimals there."""
    text = CODEC.encode_entity(made).decode()
    (found,) = VARIANT.array([text]).to_pylist()

    in_python = VariantVal(found["value"], found["metadata"]).toPython()
    assert json.loads(json.dumps(in_python, default=float)) == json.loads(text)


def test_what_no_state_can_be_is_refused():
    """Another form than JSON or VARIANT, and either with typed columns."""
    where = {"app": "social", "log": "sqlite:none.db"}

    with pytest.raises(Misuse, match=r"The option state of engram\.state is json or variant, not 'xml'"):
        StateSource({**where, "state": "xml"}).schema()
    with pytest.raises(Misuse, match=r"The option state of engram\.state is only without entity"):
        StateSource({**where, "state": "variant", "entity": "user"}).schema()


def test_the_types_are_these():
    """As the reference has them."""
    types = {field.name: field.dataType.simpleString() for field in entity_schema(app, "thing").fields}

    assert types == {
        "_partition": "int",
        "_offset": "bigint",
        "key": "string",
        "number": "bigint",
        "size": "double",
        "good": "boolean",
        "name": "string",
        "since": "timestamp",
        "day": "date",
        "took": "string",
        "price": "string",
        "number_of": "string",
        "raw": "string",
        "colour": "string",
        "grade": "bigint",
        "mood": "string",
        "either": "string",
        "point": "struct<x:bigint,y:double>",
        "pair": "struct<_1:string,_2:bigint>",
        "names": "array<string>",
        "leaves": "map<string,struct<text:string,at:timestamp,tags:array<string>>>",
        "counts": "map<bigint,bigint>",
        "chosen": "array<string>",
        "grid": "array<array<bigint>>",
        "tree": "struct<name:string,below:array<string>>",
    }


def test_old_versions_are_brought_up():
    """A state of version 1 has the columns of version 2."""
    old = json.loads(CODEC.encode_entity(Thing(key="a", number=7)))
    state = json.dumps({**old, "names": "one"}).encode()
    (batch,) = table_of([EntityColumns("thing", 1, ["a"], [state])]).to_batches()

    assert current(CODEC, "thing", batch)[0]["names"] == ["one"]


def test_a_number_that_spark_cannot_hold_is_told():
    """With the column, and with the way out."""
    with pytest.raises(Corrupt, match=r"thing.number is bigint in Spark, .* leave out the option entity"):
        column_of([2**63], INTEGER, "thing.number")


def test_what_is_missing_or_unknown_is_told():
    """Options by their names, and an entity type with those that there are."""
    with pytest.raises(Misuse, match=r"engram.log has no option partion: it knows app, log, snapshots\."):
        Where.of({"app": "x", "log": "sqlite:x.db", "partion": "3"}, "engram.log")
    with pytest.raises(Misuse, match=r"engram.log needs the option app: MODULE:APP, or the app's name\."):
        Where.of({"log": "sqlite:x.db"}, "engram.log")
    with pytest.raises(Misuse, match=r"engram.log needs the option log, or snapshots: the URL of where they are\."):
        Where.of({"app": "x"}, "engram.log")
    with pytest.raises(Misuse, match=r"things has no entity 'user': it has thing\."):
        entity_fields(app, "user")


comparisons = {
    EqualTo: lambda a, b: a == b,
    GreaterThan: lambda a, b: a > b,
    GreaterThanOrEqual: lambda a, b: a >= b,
    LessThan: lambda a, b: a < b,
    LessThanOrEqual: lambda a, b: a <= b,
}
small = st.integers(-2, 6)


@given(
    st.lists(
        st.tuples(st.sampled_from(list(comparisons)), small) | st.tuples(st.just(In), st.lists(small)), max_size=4
    ),
    st.lists(st.tuples(st.just(EqualTo), text) | st.tuples(st.just(In), st.lists(text)), max_size=2),
    st.lists(st.tuples(st.integers(0, 5), st.none() | text), max_size=8),
)
def test_bounds_let_the_same_through_as_the_filters(numbers, texts, found):
    """Whatever is asked of an offset and a text together; and what lies outside the span is let through by none."""
    bounds = Bounds()
    filters = [kind(("offset",), value) for kind, value in numbers] + [kind(("name",), value) for kind, value in texts]
    assert list(bounds.take(filters, numbers=("offset",), texts=("name",))) == []

    def lets(row: tuple[int, str | None]) -> bool:
        of_numbers = [row[0] in v if kind is In else comparisons[kind](row[0], v) for kind, v in numbers]
        return all(of_numbers) and all(row[1] in v if kind is In else row[1] == v for kind, v in texts)

    start, end = bounds.span("offset", 0, 6)
    inside = [row for row in found if start <= row[0] < end and bounds.lets("offset", row[0])]
    schema = pa.schema([("offset", pa.int64()), ("name", pa.string())])
    batch = pa.RecordBatch.from_pylist([{"offset": o, "name": n} for o, n in inside], schema)
    kept = bounds.kept(batch, ("offset", "name")).to_pylist()
    assert [(row["offset"], row["name"]) for row in kept] == [row for row in found if lets(row)]
