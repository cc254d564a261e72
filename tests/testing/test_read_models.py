"""What a scenario finds wrong with read models."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from engram import App, Command, Context, Entity, Lookup, Misuse
from engram.testing import scenario

from tests.read_models.club import Best, Mark, Marked, Points, Score, Spoil, Totals
from tests.read_models.club import app as club

_calls = itertools.count()


@dataclass(slots=True, kw_only=True)
class Box(Entity, name="box"):
    what: str = ""


class Put(Command[Box, None], name="put"):
    what: str

    def handle(self, box: Box, ctx: Context) -> None:
        box.what = self.what


class Moody(Lookup[Box, int], name="moody"):
    """Not the same twice."""

    def rows(self, box: Box) -> Iterator[tuple[str, int]]:
        yield box.what, next(_calls) if box.what == "moody" else 0


class Vague(Lookup[Box, tuple[int, ...]], name="vague"):
    """Not of its declared type, in a way that JSON does not tell."""

    def rows(self, box: Box) -> Iterator[tuple[str, tuple[int, ...]]]:
        if box.what == "vague":
            yield "k", (True,)


boxes = App("boxes", commands=[Put], read_models=[Moody, Vague])


def test_rows_are_read_as_their_classes_declare():
    """A scenario has every read model of all its partitions."""
    s = scenario(club)
    for number, key in enumerate("abcdef"):
        s.given(key, Score(game="go", points=number))
        s.given(key, Mark(mark="x"))

    assert s.look_up(Marked, "x") == list("abcdef")
    assert [ranked.row for ranked in s.top(Best, "go", 2)] == ["f", "e"]
    assert s.tally(Points, "go") == Totals(6, 15, 0, 5)


def test_a_broken_read_model_fails_the_step():
    """What would be told only when somebody asks is told by the command that did it."""
    s = scenario(club)
    with pytest.raises(AssertionError, match=r"(?s)Spoil.* broke a read model.*ValueError: a is spoiled"):
        s.when("a", Spoil())


def test_rows_that_differ_from_call_to_call_are_found():
    """Rows that depend on more than the entity are told, with both."""
    s = scenario(boxes)
    s.given("a", Put(what="fine"))
    with pytest.raises(AssertionError, match=r"moody has other rows of a copy of 'a'.*nothing but the entity"):
        s.given("a", Put(what="moody"))


def test_a_read_model_of_another_app_is_misuse():
    """Only what the app lists can be read."""
    with pytest.raises(Misuse, match="Moody is no read model of app club: list it"):
        scenario(club).look_up(Moody, "x")
