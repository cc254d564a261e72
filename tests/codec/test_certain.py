"""What is certain to be read back from its encoding, and what somebody must try."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from engram import Command, Context, Entity, Part
from engram.codec.outgoing import outgoing, reads_back
from engram.codec.readable import state_reads_back
from engram.model.entity import STATE_CONFIG
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field, TypeAdapter, ValidationError, field_validator


@dataclass(slots=True, kw_only=True)
class Thing(Entity, name="thing"):
    count: int = 0


class _Handled(Command[Thing, None], name="handled"):
    def handle(self, thing: Thing, ctx: Context) -> None:
        thing.count += 1


class Certain(_Handled, name="certain"):
    text: Annotated[str, Field(min_length=1, max_length=9)]
    number: Annotated[int, Field(ge=-(10**30), le=10**30)]
    right: bool
    at: datetime
    maybe: str | None = None


class Bare(_Handled, name="bare"):
    pass


class WithFloat(_Handled, name="with_float"):
    number: float


class WithList(_Handled, name="with_list"):
    numbers: list[int]


class WithAlias(_Handled, name="with_alias"):
    number: int = Field(alias="n")


class WithDefaultOutOfBounds(_Handled, name="with_default"):
    text: Annotated[str, Field(min_length=1)] = ""


class WithPattern(_Handled, name="with_pattern"):
    text: Annotated[str, Field(pattern="^a")]


class WithUnion(_Handled, name="with_union"):
    value: int | str


class WithValidator(_Handled, name="with_validator"):
    text: str

    @field_validator("text")
    @classmethod
    def shorter(cls, text: str) -> str:
        if len(text) > 5:
            raise ValueError("too long")
        return f"{text}!"


class WithCode(_Handled, name="with_code"):
    text: str

    def model_post_init(self, _context: Any) -> None:
        assert self.text


texts = st.text(min_size=1, max_size=9)
times = st.datetimes(timezones=st.none() | st.timezones())
certain = st.builds(
    Certain, text=texts, number=st.integers(-(10**30), 10**30), right=st.booleans(), at=times, maybe=st.none() | texts
)


@settings(deadline=None, max_examples=300)
@given(certain)
def test_certain_commands_are_read_back(command: Certain):
    """Whatever the constructor took comes back, and is the same but for parts of a minute in a time zone."""
    body = outgoing(Certain, 1).encode(command)
    back = Certain.model_validate_json(body)

    assert back.model_dump(exclude={"at"}) == command.model_dump(exclude={"at"})
    assert back.at.replace(tzinfo=None) == command.at.replace(tzinfo=None)


def test_which_commands_are_certain():
    """Plain fields with bounds are; anything that runs code, changes names or may be out of its own bounds is not."""
    assert reads_back(Certain)
    assert reads_back(Bare)
    tried = [WithFloat, WithList, WithAlias, WithDefaultOutOfBounds, WithPattern, WithUnion, WithValidator, WithCode]
    assert [cls.__name__ for cls in tried if reads_back(cls)] == []


def test_what_is_not_certain_is_tried_before_it_leaves():
    """A default out of its bounds, or a validator that refuses its own result, is refused at the sender."""
    with pytest.raises(ValidationError):
        outgoing(WithDefaultOutOfBounds, 1).encode(WithDefaultOutOfBounds())
    with pytest.raises(ValidationError):
        outgoing(WithValidator, 1).encode(WithValidator(text="12345"))


def test_no_command_is_made_without_being_validated():
    """Neither by model_construct nor by model_copy: what is certain rests on it."""
    good = Certain(text="x", number=1, right=True, at=datetime(2024, 1, 1))  # noqa: DTZ001
    with pytest.raises(ValidationError):
        Certain.model_construct(text="", number=1, right=True, at=good.at)
    with pytest.raises(ValidationError):
        good.model_copy(update={"text": "far too long a text"})
    assert good.model_copy(update={"number": 2}).number == 2
    assert good.model_copy() == good


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: float


@dataclass(slots=True, kw_only=True)
class Box(Part):
    points: list[Point] = field(default_factory=list)
    inner: dict[str, Box] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Room(Entity, name="room"):
    text: str = ""
    data: bytes = b""
    at: datetime | None = None
    colour: Colour = Colour.RED
    numbers: dict[int, float] = field(default_factory=dict)
    boxes: dict[str, Box] = field(default_factory=dict)
    nothing: dict[str, None] = field(default_factory=dict)


points = st.builds(Point, st.integers(), st.floats())
boxes = st.recursive(
    st.builds(Box, points=st.lists(points, max_size=3)),
    lambda inner: st.builds(
        Box, points=st.lists(points, max_size=2), inner=st.dictionaries(st.text(), inner, max_size=2)
    ),
    max_leaves=4,
)
rooms = st.builds(
    Room,
    key=texts,
    text=st.text(),
    data=st.binary(),
    at=st.none() | times,
    colour=st.sampled_from(Colour),
    numbers=st.dictionaries(st.integers(), st.floats(), max_size=3),
    boxes=st.dictionaries(st.text(), boxes, max_size=3),
    nothing=st.dictionaries(st.text(), st.none(), max_size=3),
)
ADAPTER = TypeAdapter(Room)


@settings(deadline=None, max_examples=300)
@given(rooms)
def test_certain_states_are_read_back(room: Room):
    """Bytes, NaN, times, parts within parts: what can be encoded can be decoded, and is encoded to the same bytes."""
    body = ADAPTER.serializer.to_json(room, warnings="error")

    assert ADAPTER.serializer.to_json(ADAPTER.validate_json(body)) == body


def test_which_states_are_certain():
    """Plain values, lists, dicts and dataclasses of them are; what has bounds, choices or unions must be tried."""
    assert STATE_CONFIG["ser_json_inf_nan"] == "strings"
    assert state_reads_back(Room)
    for tp in (int, str | None, list[dict[str, Point]], Box, Colour):
        assert state_reads_back(tp), tp
    for tp in (Annotated[str, Field(max_length=3)], int | str, Literal["a"], tuple[int, int], dict[float, int], Any):
        assert not state_reads_back(tp), tp
