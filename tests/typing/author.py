"""What the author of an app sees. Not run: mypy and pyright read it."""

from dataclasses import dataclass, field
from datetime import datetime
from random import Random
from typing import assert_type

from engram import (
    App,
    Command,
    Context,
    Entity,
    Event,
    Json,
    Part,
    Position,
    Principal,
    Query,
    Rejected,
    allow,
    upcaster,
)
from engram.model.principal import Rule
from engram.model.upcaster import Upcaster


@dataclass(slots=True, kw_only=True)
class Line(Part):
    text: str
    marks: int = 0


@dataclass(slots=True, kw_only=True)
class Note(Entity, name="note", version=2):
    lines: list[Line] = field(default_factory=list)
    seen: dict[str, datetime] = field(default_factory=dict)


class Written(Event, name="written"):
    text: str


class Write(Command[Note, int], name="write"):
    text: str

    def handle(self, note: Note, ctx: Context) -> int:
        if not self.text:
            raise Rejected("empty", "Write something.")
        note.lines.append(Line(text=self.text))
        ctx.send("other", Look())
        ctx.emit(Written(text=self.text))
        return len(note.lines)


class Look(Command[Note, None], name="look", authorize=allow.owner | allow.role("reader")):
    def handle(self, note: Note, ctx: Context) -> None:
        note.seen[ctx.new_id()] = ctx.now


class Newest(Query[Note, Line | None], name="newest"):
    def answer(self, note: Note) -> Line | None:
        return note.lines[-1] if note.lines else None

    def authorize(self, principal: Principal, key: str) -> bool:
        return principal.known and not key.startswith("secret")

    def authorize_entity(self, principal: Principal, note: Note) -> bool:
        return principal.name in note.seen


@upcaster(Note, from_version=1)
def lines_came(old: Json) -> Json:
    return {**old, "lines": []}


app = App("notes", version=2, commands=[Write, Look], queries=[Newest], events=[Written], upcasters=[lines_came])


def fields(note: Note, command: Write, line: Line) -> None:
    """Entities, parts and commands have the fields that they declare, the key included."""
    assert_type(note.key, str)
    assert_type(note.lines, list[Line])
    assert_type(note.seen["ada"], datetime)
    assert_type(line.marks, int)
    assert_type(command.text, str)


def context(ctx: Context) -> None:
    """Everything that a handler gets from its context is typed."""
    assert_type(ctx.now, datetime)
    assert_type(ctx.position, Position)
    assert_type(ctx.random, Random)
    assert_type(ctx.new_id(), str)


def results(note: Note, ctx: Context) -> None:
    """Handlers and answers can be called like any method, and give what they declare."""
    assert_type(Write(text="x").handle(note, ctx), int)
    assert_type(Newest().answer(note), Line | None)


def guarding(note: Note, principal: Principal) -> None:
    """Who may is a yes or no, and can be asked without anything that runs."""
    assert_type(Look().authorize(principal, "a"), bool)
    assert_type(Newest().authorize_entity(principal, note), bool)
    assert_type(allow.owner | allow.operator, Rule)
    assert_type(principal.roles, frozenset[str])


def making() -> None:
    """Entities and parts are made with keywords; an upcaster is no longer a function."""
    assert_type(Note(key="a"), Note)
    assert_type(Line(text="x", marks=1), Line)
    assert_type(lines_came, Upcaster)
