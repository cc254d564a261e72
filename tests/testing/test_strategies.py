"""Commands made from their types."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Literal, NamedTuple, NewType
from uuid import UUID

import pytest
from engram import App, Broadcast, Command, Context, Entity, Misuse
from engram.codec.codec import Codec
from engram.testing import commands, scenario
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    StringConstraints,
    field_validator,
    model_validator,
)

from sample_apps.social import app as social
from sample_apps.social.commands import Follow, Publish, Register

Name = Annotated[str, Field(min_length=2, max_length=5)]
Cents = NewType("Cents", int)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Line(BaseModel):
    model_config = ConfigDict(frozen=True)

    product: Name
    count: Annotated[int, Field(ge=1, le=9)] = 1


class Tree(BaseModel):
    model_config = ConfigDict(frozen=True)

    label: Name
    children: tuple[Tree, ...] = Field(default=(), max_length=2)


@dataclass(frozen=True)
class Place:
    street: Name
    number: NonNegativeInt


class Pair(NamedTuple):
    left: int
    right: str


@dataclass(slots=True, kw_only=True)
class Shop(Entity, name="shop"):
    orders: int = 0


class Order(Command[Shop, int], name="order"):
    """One field for every way to say a limit."""

    name: Name
    code: Annotated[str, Field(pattern=r"^[A-Z]{3}-\d+$", max_length=8)]
    tag: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    lines: Annotated[list[Line], Field(min_length=1, max_length=3)]
    names: list[Name]
    prices: dict[Name, Annotated[Decimal, Field(gt=0, max_digits=6, decimal_places=2)]]
    discount: Annotated[float, Field(ge=0, lt=1)] = 0.0
    steps: Annotated[int, Field(multiple_of=5, ge=-20)]
    colour: Colour
    kind: Literal["gift", "own"]
    place: Place | None = None
    pair: Pair
    span: tuple[int, Name]
    cents: Cents
    at: datetime
    due: AwareDatetime | date
    wait: timedelta
    number: UUID
    data: bytes
    tree: Tree
    big: Decimal
    plain: str = "untouched"

    def handle(self, shop: Shop, ctx: Context) -> int:
        shop.orders += 1
        return shop.orders


class Even(Command[Shop, None], name="even"):
    """With rules that types do not show."""

    number: int
    other: int

    @field_validator("number")
    @classmethod
    def is_even(cls, number: int) -> int:
        if number % 2:
            raise ValueError("not even")
        return number

    @model_validator(mode="after")
    def differ(self) -> Even:
        if self.number == self.other:
            raise ValueError("the same")
        return self

    def handle(self, shop: Shop, ctx: Context) -> None: ...


class Note(Command[Shop, None], name="note"):
    """Small, for what is looked for."""

    text: Name
    number: int = Field(default=3, alias="Number", ge=3)
    colour: str = "red"

    def handle(self, shop: Shop, ctx: Context) -> None: ...


shop = App("shop", commands=[Order, Even, Note])
# `find` need not find the smallest.
quick = settings(max_examples=1000, phases=[Phase.generate], database=None)
modest = settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow], deadline=None)


@modest
@given(commands(shop, Order))
def test_limits_are_kept(pair):
    """Every field keeps to the limits in its type, also within lists, dicts, models and dataclasses."""
    _, order = pair
    assert 2 <= len(order.name) <= 5
    assert re.search(r"^[A-Z]{3}-\d+$", order.code)
    assert order.tag  # what pydantic takes for white space, which is not all that Python does
    assert 1 <= len(order.lines) <= 3
    assert all(2 <= len(line.product) <= 5 and 1 <= line.count <= 9 for line in order.lines)
    assert all(2 <= len(name) <= 5 for name in [*order.names, *order.prices, order.span[1], order.tree.label])
    assert all(0 < price < 10_000 for price in order.prices.values())
    assert 0 <= order.discount < 1
    assert order.steps % 5 == 0
    assert order.steps >= -20
    assert order.place is None or (order.place.number >= 0 and 2 <= len(order.place.street) <= 5)
    assert order.at.tzinfo is UTC


@modest
@given(commands(shop, Order))
def test_every_command_survives_the_log(pair):
    """What is generated is what a client could send: it is encoded, and decoded to the same."""
    _, order = pair
    codec = Codec(shop)
    body = codec.encode_body(order)
    assert codec.encode_body(codec.decode_command("order", 1, body)) == body


@modest
@given(commands(shop, Even))
def test_what_a_validator_refuses_is_drawn_again(pair):
    """Rules in validators are kept too: what they refuse never reaches the test."""
    _, even = pair
    assert even.number % 2 == 0
    assert even.number != even.other


@given(commands(social))
def test_without_types_all_commands_of_the_app_are_drawn(pair):
    """`commands(app)` draws from all commands of the app, for keys of its pool; a broadcast's key is its own."""
    key, command = pair
    assert key in (("*",) if isinstance(command, Broadcast) else ("ada", "bob", "cleo"))
    assert social.commands[command.__engram__.name] is type(command)


@pytest.mark.parametrize("cls", social.commands.values(), ids=lambda cls: cls.__name__)
def test_every_command_of_the_app_is_met(cls):
    """No command of the app is left out."""
    _, command = find(commands(social), lambda pair: type(pair[1]) is cls, settings=quick)
    assert type(command) is cls


def test_only_the_asked_for_types_are_drawn():
    """`commands(app, A, B)` draws commands of A and B and no others."""

    @modest
    @given(st.lists(commands(social, Register, Publish), max_size=5))
    def only_those(history):
        assert {type(command) for _, command in history} <= {Register, Publish}

    only_those()


def test_commands_name_each_others_entities():
    """Texts are often one of the keys, so that a command finds the entity that it names."""

    def follow_each_other(history):
        (one, first), (other, second) = history
        return one != other and (first.whom, second.whom) == (other, one)

    two = st.tuples(commands(social, Follow), commands(social, Follow))
    assert find(two, follow_each_other, settings=quick)


def test_texts_are_not_only_keys():
    """Texts that are no keys are drawn too, and keys that do not fit a text are left out of it."""
    key, note = find(commands(shop, Note, keys=["a key that is too long"]), lambda _: True, settings=quick)
    assert key == "a key that is too long"
    assert len(note.text) <= 5
    find(commands(social, Follow), lambda pair: pair[1].whom not in ("ada", "bob", "cleo"), settings=quick)


def test_fields_with_defaults_are_drawn_and_left_out():
    """A field with a default sometimes has it and sometimes another value; one with an alias goes by that."""
    notes = commands(shop, Note)
    assert find(notes, lambda pair: pair[1].colour == "red", settings=quick)
    assert find(notes, lambda pair: pair[1].colour != "red", settings=quick)
    assert find(notes, lambda pair: pair[1].number > 3, settings=quick)


def test_what_is_not_the_apps_is_refused():
    """A command that the app does not list, no keys, and a key that is none are `Misuse`."""
    with pytest.raises(Misuse, match="Follow is no command of app shop"):
        commands(shop, Follow)
    with pytest.raises(Misuse, match="No keys were given"):
        commands(shop, keys=[])
    with pytest.raises(Misuse, match="The key is empty"):
        commands(shop, keys=["ada", ""])


@modest
@given(st.lists(commands(shop, Order, Even), max_size=5))
def test_generated_histories_run_in_a_scenario(history):
    """Generated commands are handled by a scenario, which checks everything that they touch."""
    s = scenario(shop)
    for key, command in history:
        s.when(key, command).handled()
    s.check()
    assert sum(of.orders for of in s.entities(Shop).values()) == sum(type(command) is Order for _, command in history)
