"""Traces: from any command of a chain to its root, and from there to all that it led to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from engram import App, Broadcast, Command, Context, Entity, Event, Misuse, Position, Shared
from engram.codec.record import Kind, MessagesHeader, Origin
from engram.log.base import Entry
from engram.log.memory import MemoryLog
from engram.log.sqlite import SqliteLog
from engram.log.trace import Step, find_position, trace
from engram.testing import scenario

from tests.cli.saying import Engram


@dataclass(slots=True, kw_only=True)
class Node(Entity, name="node"):
    heard: int = 0


@dataclass(slots=True, kw_only=True)
class Mood(Shared, name="mood"):
    good: bool = True


class Spread(Command[Node, None], name="spread"):
    """Tells so many others, who tell one fewer each."""

    to: int
    name: str = "n"

    def handle(self, node: Node, ctx: Context) -> None:
        node.heard += 1
        for number in range(self.to):
            child = f"{self.name}{number}"
            ctx.send(child, Spread(to=self.to - 1, name=child))
        if not self.to:
            ctx.emit(Heard(name=self.name))


class Later(Command[Node, None], name="later"):
    def handle(self, node: Node, ctx: Context) -> None:
        ctx.schedule(timedelta(seconds=5), Spread(to=1, name="late"))


class Darken(Broadcast[Mood, None], name="darken"):
    def handle(self, mood: Mood, ctx: Context) -> None:
        mood.good = False


class Heard(Event, name="heard"):
    name: str


app = App("gossip", commands=[Spread, Later, Darken], events=[Heard])


def history() -> MemoryLog:
    s = scenario(app, partitions=4)
    s.given("n", Spread(to=3))
    s.pass_time(timedelta(seconds=1))
    s.given("other", Spread(to=1, name="other"))
    s.given("n", Later())
    s.broadcast(Darken())
    s.pass_time(timedelta(seconds=5))
    return s._log


@pytest.fixture
def log() -> Iterator[MemoryLog]:
    with closing(history()) as log:
        yield log


def quiet(_records: int) -> None:
    """Nobody watches."""


def names(step: Step) -> object:
    """The tree as nested tuples: command, entity, events, and what it led to."""
    return (
        step.command,
        step.key,
        [json.loads(event.body)["name"] for event in step.events],
        sorted((names(below) for below in step.led_to), key=repr),
    )


def spread(name: str, to: int) -> object:
    children = sorted((spread(f"{name}{n}", to - 1) for n in range(to)), key=repr)
    return ("spread", name, [] if to else [name], children)


def everything(step: Step) -> Iterator[Step]:
    yield step
    for below in step.led_to:
        yield from everything(below)


def test_a_trace_is_the_whole_tree_and_nothing_else(log):
    """Messages of messages are in it, with their events; other chains in the same partitions are not."""
    position = find_position(log, "scenario/1")

    assert names(trace(log, position, progress=quiet)) == spread("n", 3)
    assert names(trace(log, find_position(log, "scenario/2"), progress=quiet)) == spread("other", 1)


def test_any_command_of_the_chain_leads_to_the_same_tree(log):
    """The position of a message is as good as that of the root."""
    root = trace(log, find_position(log, "scenario/1"), progress=quiet)

    for step in everything(root):
        assert trace(log, step.position, progress=quiet) == root


def test_timers_and_broadcasts_are_steps(log):
    """A timer stands between who scheduled it and what it sent; a broadcast comes to every other partition."""
    later = trace(log, find_position(log, "scenario/3"), progress=quiet)
    (timer,) = later.led_to
    (late,) = timer.led_to
    assert (timer.command, timer.timer, timer.position.index < 0) == ("spread", True, True)
    assert (late.command, late.key, [e.name for e in late.events]) == ("spread", "late0", ["heard"])

    darken = trace(log, find_position(log, "scenario/4"), progress=quiet)
    assert [step.everywhere for step in darken.led_to] == [True] * 3
    assert len({step.position.partition for step in darken.led_to}) == 3


def test_what_was_appended_twice_is_one_step(log):
    """A new owner may append messages again that are in the log already; their receiver drops them, and so do we."""
    root = trace(log, find_position(log, "scenario/1"), progress=quiet)
    for partition in range(log.partitions):
        for record in log.read(partition, 0, limit=1000):
            if record.kind is Kind.MESSAGES:
                header = MessagesHeader.read(record.payload.partition(b"\n")[0])
                origin = header.origin_partition, Origin(*header.origins[-1])
                log.append([Entry(partition, record.kind, record.time, record.payload, origin)])

    assert trace(log, root.position, progress=quiet) == root


@pytest.mark.parametrize("position", ["0:999.0", "9:0.0", "0:0.999"])
def test_a_position_without_a_command_is_refused(log, position):
    """One sentence, with where to look."""
    with pytest.raises(Misuse, match=r"There is no (command at|partition)"):
        trace(log, Position.parse(position), progress=quiet)


def test_an_unknown_id_is_refused(log):
    """The sentence says which forms an id has."""
    with pytest.raises(Misuse, match="SESSION/SEQUENCE"):
        find_position(log, "nobody/1")


def test_the_command_line_draws_the_tree(log, tmp_path: Path, engram: Engram):
    """Positions, commands, entities and times; the command that was asked for is marked."""
    with closing(SqliteLog(tmp_path / "log.db", app.name, partitions=log.partitions, create=True)) as copy:
        for partition in range(log.partitions):
            for record in log.read(partition, 0, limit=1000):
                copy.append(
                    [Entry(partition, record.kind, record.time, record.payload)],
                    log.events(partition, after=(-1, 0, 0), limit=1000),
                )
    root = trace(log, find_position(log, "scenario/2"), progress=quiet)
    where = ["tests.cli.test_trace:app", "--log", f"sqlite:{tmp_path / 'log.db'}"]

    said = engram("trace", where[0], str(root.led_to[0].position), *where[1:])
    as_json = engram("trace", where[0], "scenario/2", *where[1:], "--json")
    refused = engram("trace", where[0], "3:999.0", *where[1:])

    assert said.exit_code == 0, said.stderr
    first, second, third = said.stdout.splitlines()
    assert first.startswith(f"{root.position}  spread of other  2024-01-01T00:00:01.000Z")
    assert second.startswith(f"`-- {root.led_to[0].position}  spread of other0  +0 ms")
    assert second.endswith("<-- asked for")
    assert third.strip() == "`-- event heard"
    assert json.loads(as_json.stdout)["led_to"][0]["events"] == [{"name": "heard", "number": 0}]
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr == "engram: There is no command at 3:999.0: see `engram log show`.\n"
