"""Which types may be state, and how their values can change in place."""

from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Annotated, Any, Literal, NamedTuple, NewType, Optional
from uuid import UUID

import pytest
from engram import Part
from engram.model.shape import Refused, Shape, find_set, part_fields, state_shape
from pydantic import BaseModel, Field


class Colour(Enum):
    RED = "red"


class Size(Enum):
    SMALL = 1


class Rank(IntEnum):
    FIRST = 1


class Mood(StrEnum):
    GLAD = "glad"


class Point(NamedTuple):
    x: int
    y: int


class Money(BaseModel, frozen=True):
    amount: Decimal
    unit: Colour


@dataclass(frozen=True)
class Line:
    points: tuple[Point, ...]
    colour: Colour | None = None


@dataclass(frozen=True)
class Tree:
    children: "tuple[Tree, ...]" = ()


@dataclass(slots=True, kw_only=True)
class Post(Part):
    text: str = ""
    likes: dict[str, None] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Node(Part):
    children: "list[Node]" = field(default_factory=list)
    names: list[str] = field(default_factory=list)


Key = NewType("Key", str)

FIXED = [
    *(str, int, float, bool, bytes, None, datetime, date, time, timedelta, Decimal, UUID, Colour, Size, Rank, Mood),
    *(Literal["a", "b"], Key, Annotated[int, Field(ge=0)], int | None, Optional[str]),  # noqa: UP045 - not the same type as str | None
    *(tuple[int, ...], tuple[str, tuple[int, bool]], Point, Money, Line, Tree, tuple[Money, ...]),
]


@pytest.mark.parametrize("tp", FIXED, ids=str)
def test_values_that_never_change(tp):
    """Immutable values, and frozen types and tuples of them, are fixed all the way down."""
    assert state_shape(tp) is Shape.FIXED


@pytest.mark.parametrize("tp", FIXED, ids=str)
def test_flat_containers(tp):
    """A list or dict of fixed values is flat: its elements need not be looked at."""
    assert state_shape(list[tp]) is Shape.FLAT
    assert state_shape(dict[str, tp]) is Shape.FLAT
    assert state_shape(dict[str, tp] | None) is Shape.FLAT


@pytest.mark.parametrize(
    "tp",
    [
        Post,
        Node,
        Post | None,
        list[Post],
        dict[str, Post],
        list[list[int]],
        dict[str, dict[str, int]],
        list[int] | Post,
    ],
    ids=str,
)
def test_nested_values(tp):
    """A part, and a container within a container, is nested; so is a choice that has one."""
    assert state_shape(tp) is Shape.NESTED


@pytest.mark.parametrize("key", [str, int, date, datetime, UUID, Colour, Rank, Mood, Key], ids=str)
def test_keys_of_dicts(key):
    """Keys may be of any type that comes back from its text form."""
    assert state_shape(dict[key, int]) is Shape.FLAT


@pytest.mark.parametrize("key", [float, bytes, Decimal, None, Point, Size, int | str, Literal["a"]], ids=str)
def test_keys_that_are_refused(key):
    """A key without a way back from text is refused. Such is an Enum whose values are numbers, unless an IntEnum."""
    with pytest.raises(Refused, match="a dict's keys must be"):
        state_shape(dict[key, int])


def test_a_part_that_contains_itself():
    """The fields of a recursive part have their own shapes: a list of such parts is nested."""
    assert {name: state_shape(tp) for name, tp in part_fields(Node).items()} == {
        "children": Shape.NESTED,
        "names": Shape.FLAT,
    }


@dataclass(frozen=True)
class Frame:
    pictures: "tuple[Picture, ...]" = ()


@dataclass(slots=True, kw_only=True)
class Picture(Part):
    frame: Frame | None = None


@pytest.mark.parametrize("tp", [Frame, Picture, list[Picture]], ids=str)
def test_a_part_hidden_in_a_frozen_type(tp):
    """A frozen type cannot hold a part, wherever one starts to look: its changes would not be undone."""
    with pytest.raises(Refused, match="a tuple cannot hold Picture, which changes in place"):
        state_shape(tp)


class Loose(BaseModel):
    tags: list[str]


@pytest.mark.parametrize(
    "tp", [Any, object, set[int], Loose, list[Any], dict[str, object], type, "str", range, list[range]], ids=str
)
def test_types_that_are_refused(tp):
    """What is not on the list of types that can be kept is refused, also inside a container."""
    with pytest.raises(Refused):
        state_shape(tp)


@dataclass(frozen=True)
class Bag:
    inner: "Bag | None"
    tags: list[frozenset[str]]


@pytest.mark.parametrize(
    ("tp", "held"),
    [
        (set, "<class 'set'>"),
        (dict[str, list[set[int]]], "set[int]"),
        (Bag, "frozenset[str]"),
        (tuple[Bag, ...], "frozenset[str]"),
        (Annotated[set[int], Field(max_length=3)], "set[int]"),
        (list[str], None),
        (Tree, None),
        (Money, None),
        (Any, None),
    ],
    ids=str,
)
def test_finding_a_set(tp, held):
    """A set is found at any depth, also in types that contain themselves."""
    assert find_set(tp) == held
