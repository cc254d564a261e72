"""A field that a handler assigns last of all need not be put back: whatever it raises, it has not assigned it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest
from engram import App, Command, Context, Entity, Part
from engram.codec.codec import Codec
from engram.codec.record import Envelope, Kind, Record, encode_commands
from engram.image.guard import assigned_fields, captured_fields
from engram.image.image import Image
from engram.image.outcome import Verdict


@dataclass(slots=True, kw_only=True)
class Count(Entity, name="count"):
    number: int = 0
    other: int = 0
    names: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Leaf(Part):
    green: bool = True


@dataclass(slots=True, kw_only=True)
class Tree(Entity, name="tree"):
    leaves: list[Leaf] = field(default_factory=list)
    number: int = 0


class Last(Command[Count, None], name="last"):
    by: int

    def handle(self, count: Count, ctx: Context) -> None:
        count.names.append("before")
        count.number += 6 // self.by


class Plain(Command[Count, None], name="plain"):
    by: int

    def handle(self, count: Count, ctx: Context) -> None:
        if self.by > 1:
            count.names.clear()
        count.number = 60 // self.by


class NotLast(Command[Count, None], name="not_last"):
    by: int

    def handle(self, count: Count, ctx: Context) -> None:
        count.number += 1
        count.names.append(str(6 // self.by))


class Twice(Command[Count, None], name="twice"):
    by: int

    def handle(self, count: Count, ctx: Context) -> None:
        count.other = 1
        count.number += 6 // self.by


class InLoop(Command[Count, None], name="in_loop"):
    by: int

    def handle(self, count: Count, ctx: Context) -> None:
        for number in (1, self.by):
            count.number += 6 // number


class Replies(Command[Count, int], name="replies"):
    by: int

    def handle(self, count: Count, ctx: Context) -> int:
        if self.by:
            return "six"  # type: ignore[return-value]
        count.number += 1


class Sends(Command[Count, None], name="sends"):
    by: int

    def handle(self, count: Count, ctx: Context) -> None:
        ctx.send("another", Last(by=self.by))
        count.number += 6 // self.by


class Contained(Command[Count, None], name="contained"):
    by: int

    def handle(self, count: Count, ctx: Context) -> None:
        count.names = [str(6 // self.by)]


class Grow(Command[Tree, None], name="grow"):
    by: int

    def handle(self, tree: Tree, ctx: Context) -> None:
        tree.leaves.append(Leaf())
        tree.number += 6 // self.by


COMMANDS = [Last, Plain, NotLast, Twice, InLoop, Replies, Sends, Contained, Grow]
app = App("counts", commands=COMMANDS)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.__name__)
def test_only_what_is_certainly_last_is_not_captured(command):
    """Not in a loop, not beside another, not with a reply, effects, or a container that is looked at afterwards."""
    entity = Tree if command is Grow else Count
    assigned, captured = assigned_fields(command.handle, entity), captured_fields(command.handle, entity)
    assert captured == (set() if command in (Last, Plain) else assigned)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.__name__)
def test_a_handler_that_raises_leaves_no_trace(command):
    """Whatever was captured, or not: after a failure the state is as before, and the next one goes on from there."""
    image, name = Image(0, Codec(app)), command.__engram__.name
    outcomes, digests = [], []
    for offset, by in enumerate((2, 0, 3)):
        envelope = Envelope(name, 1, "a", json.dumps({"by": by}).encode(), "s", offset)
        record = Record(0, offset, Kind.COMMANDS, 1, encode_commands([envelope], "w"))
        outcomes += image.handle(record).outcomes
        digests.append([(row.entity, row.key, row.state) for row in image.rows()])

    failed = [number for number, outcome in enumerate(outcomes) if outcome.verdict is Verdict.QUARANTINED]
    assert failed == ([0, 1, 2] if command is Replies else [1])
    assert digests[1] == digests[0]
    assert (digests[2] == digests[1]) is (command is Replies)
