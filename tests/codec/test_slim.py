"""Slim forms of commands: nobody can tell them from the commands that their authors wrote."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from engram import App, Command, Context, Entity, Rejected
from engram.codec.codec import Codec
from engram.codec.record import Envelope, Kind, Record, encode_commands
from engram.codec.slim import slim_form, whole
from engram.image.image import Image
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError, field_validator


@dataclass(slots=True, kw_only=True)
class Account(Entity, name="account"):
    total: float = 0
    notes: list[str] = field(default_factory=list)


class Plain(Command[Account, int], name="plain"):
    text: str
    number: int = 3
    share: float = 0.5
    yes: bool = False
    maybe: str | None = None
    perhaps: int | None = None

    def handle(self, account: Account, ctx: Context) -> int:
        if self.yes and self.number == 0:
            raise Rejected("nothing", "Nothing to do.")
        account.total += self.number * self.share
        account.notes.append(self.maybe or self.text)
        if self.perhaps == 13:
            raise ZeroDivisionError
        return len(account.notes)


class Bounded(Command[Account, None], name="bounded"):
    number: int = Field(ge=0)

    def handle(self, account: Account, ctx: Context) -> None: ...


class Validated(Command[Account, None], name="validated"):
    text: str

    @field_validator("text")
    @classmethod
    def lower(cls, text: str) -> str:
        return text.lower()

    def handle(self, account: Account, ctx: Context) -> None: ...


class Escaping(Command[Account, None], name="escaping"):
    text: str

    def handle(self, account: Account, ctx: Context) -> None:
        account.notes.append(repr(self))


class WithMethod(Command[Account, None], name="with_method"):
    text: str

    def twice(self) -> str:
        return self.text * 2

    def handle(self, account: Account, ctx: Context) -> None:
        account.notes.append(self.twice())


class WithList(Command[Account, None], name="with_list"):
    texts: list[str]

    def handle(self, account: Account, ctx: Context) -> None:
        account.notes += self.texts


class Aliased(Command[Account, None], name="aliased"):
    text: str = Field(alias="txt")

    def handle(self, account: Account, ctx: Context) -> None:
        account.notes.append(self.text)


class AfterMade(Command[Account, None], name="after_made"):
    text: str

    def model_post_init(self, _context: Any) -> None: ...

    def handle(self, account: Account, ctx: Context) -> None:
        account.notes.append(self.text)


app = App("accounts", commands=[Plain, Bounded, Validated, Escaping, WithMethod, WithList, Aliased, AfterMade])
CODEC = Codec(app)
SLIM = CODEC._slim_lines["plain", 1]
FULL = CODEC._lines["plain", 1]

values = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.sampled_from(["1", "true", "Infinity", "1.0"]),
    st.integers(min_value=2**62, max_value=2**66), st.lists(st.integers(), max_size=2),
)  # fmt: skip
names = st.sampled_from([*Plain.model_fields, "other"])
odd_lines = [
    b"[{}",
    b"{}",
    b"[1]",
    rb'[{"text":"\ud800"}]',
    b'[{"text":"a","text":"b"}]',
    b'[{"text":"a","number":1.0}]',
]


@pytest.mark.parametrize("cls", app.commands.values(), ids=lambda cls: cls.__name__)
def test_only_what_cannot_be_told_apart_has_a_slim_form(cls: type[Command[Any, Any]]):
    """A validator, a bound, an alias, a field that can change, a method, or a handler that lets the command out
    of sight keeps the command whole."""
    assert (slim_form(cls) is not None) is (cls is Plain)


@given(st.lists(st.dictionaries(names, values, max_size=7), max_size=3), st.booleans())
def test_the_same_bodies_are_taken_with_the_same_values(bodies: list[dict[str, Any]], complete: bool):
    """Whatever stands in a line: both forms refuse it, or both have the same fields, of the same types."""
    line = json.dumps([{"text": "a", **body} if complete else body for body in bodies]).encode()
    try:
        wanted = FULL(line)
    except ValidationError:
        with pytest.raises(ValidationError):
            SLIM(line)
        return
    found = SLIM(line)
    for slim, full in zip(found, wanted, strict=True):
        ours, theirs = ([getattr(command, name) for name in Plain.model_fields] for command in (slim, full))
        assert list(map(repr, ours)) == list(map(repr, theirs))
        assert repr(whole(slim)) == repr(full)


@given(st.binary(max_size=40) | st.sampled_from(odd_lines))
def test_broken_lines_come_to_the_same(line: bytes):
    """Bytes that are no JSON, or no array of objects, or have a field twice, are the same to both forms."""
    results = []
    for decode in (SLIM, FULL):
        try:
            results.append([whole(command) for command in decode(line)])
        except ValidationError:
            results.append(None)
    assert results[0] == results[1]


def test_an_image_is_the_same_with_and_without_slim_forms():
    """Replies, rejections, the quarantine with its bodies, and the digest do not depend on the form."""
    rng = random.Random(3)
    bodies = [
        {"text": str(n), "number": rng.randrange(3), "yes": rng.random() < 0.3, "perhaps": rng.choice([None, 13])}
        for n in range(200)
    ]
    envelopes = [
        Envelope("plain", 1, f"k{n % 7}", json.dumps(body).encode(), "s", n, f"i{n}" if n % 5 == 0 else None)
        for n, body in enumerate(bodies)
    ]
    records = [Record(0, n, Kind.COMMANDS, n, encode_commands(envelopes[n * 10 : n * 10 + 10], "w")) for n in range(20)]
    codec = Codec(app)
    codec._slim_lines = codec._lines
    slim, full = Image(0, CODEC), Image(0, codec)
    outcomes = [[image.handle(record).outcomes for record in records] for image in (slim, full)]

    assert isinstance(CODEC.decode_record(records[0], slim=True).commands[0], msgspec.Struct)
    assert outcomes[0] == outcomes[1]
    assert slim.quarantine.count > 10
    assert [row[:6] for row in slim.quarantine.listed] == [row[:6] for row in full.quarantine.listed]
    assert slim.digest() == full.digest()
