"""A small app with everything that can go wrong in a handler or a query."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engram import App, Command, Context, Entity, Query, Rejected, Tally
from pydantic import BaseModel, field_validator


@dataclass(slots=True, kw_only=True)
class Counter(Entity, name="counter"):
    value: int = 0


class Tag(BaseModel, frozen=True):
    """Something nested, so that field paths have more than one step."""

    label: str
    weight: int


class Add(Command[Counter, int], name="add"):
    """Counts up; the reply is the new value."""

    by: int = 1
    tags: tuple[Tag, ...] = ()

    def handle(self, counter: Counter, ctx: Context) -> int:
        if self.by < 0:
            raise Rejected("negative", f"{self.by} is below zero.")
        counter.value += self.by
        return counter.value


class Fail(Command[Counter, None], name="fail"):
    """Fails after it has changed its entity."""

    def handle(self, counter: Counter, ctx: Context) -> None:
        counter.value = -1
        raise ZeroDivisionError("the machine is on fire")


class Mark(Command[Counter, None], name="mark"):
    """Its validator refuses what it has made itself, when that is as long as it may be."""

    text: str

    @field_validator("text")
    @classmethod
    def marked(cls, text: str) -> str:
        if len(text) > 5:
            raise ValueError("too long")
        return f"{text}!"

    def handle(self, counter: Counter, ctx: Context) -> None:
        pass


class Value(Query[Counter, int], name="value"):
    """The value, times a factor."""

    times: int = 1

    def answer(self, counter: Counter) -> int:
        return counter.value * self.times


class Break(Query[Counter, int], name="break"):
    """Fails."""

    def answer(self, counter: Counter) -> int:
        raise ZeroDivisionError("the machine is on fire")


class Meddle(Query[Counter, int], name="meddle"):
    """Changes what it may only read."""

    def answer(self, counter: Counter) -> int:
        counter.value += 1
        return counter.value


class Values(Tally[Counter], name="values"):
    """All values together."""

    def rows(self, counter: Counter) -> Iterator[tuple[str, int]]:
        yield "all", counter.value


app = App("counters", commands=[Add, Fail, Mark], queries=[Value, Break, Meddle], read_models=[Values])
