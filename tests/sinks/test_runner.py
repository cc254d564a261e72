"""Runners of sinks: what one sink does is nobody else's trouble, and is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import structlog
from engram.errors import Unavailable
from engram.log.base import Log
from engram.log.cursor import NOWHERE, Place, place_of
from engram.log.sqlite import SqliteLog
from engram.log.stream import id_of
from engram.model.effects import OutEvent
from engram.sinks.base import NotNow
from engram.sinks.sqlite import SqliteSink

from tests.log.emitting import emit
from tests.sinks.conftest import Run
from tests.sinks.waiting import until


class Listing:
    """A sink of one's own: takes events into a list, after it has raised what is in `problems`, one at a time."""

    at_once = 3

    def __init__(self, name: str = "listing", problems: Sequence[Exception] = ()) -> None:
        self.name = name
        self.problems = list(problems)
        self.taken: list[str] = []
        self.tries: list[float] = []
        self.closed = False

    def deliver(self, events: Sequence[OutEvent]) -> None:
        self.tries.append(time.monotonic())
        if self.problems:
            raise self.problems.pop(0)
        assert len(events) <= self.at_once
        self.taken += map(id_of, events)

    def close(self) -> None:
        self.closed = True


class Forgetful(Listing):
    """Keeps its place, and fails after it has taken the events, every time."""

    def __init__(self) -> None:
        super().__init__("forgetful")
        self._places: dict[int, Place] = {}

    def place(self, partition: int) -> Place:
        return self._places.get(partition, NOWHERE)

    def deliver(self, events: Sequence[OutEvent]) -> None:
        super().deliver(events)
        self._places |= {event.partition: place_of(event) for event in events}
        raise ConnectionResetError("after the commit")


def test_a_sink_gets_every_event_in_pieces_it_can_take(log: Log, run: Run):
    """What was there before, and what comes; then nothing is behind, and there is no problem."""
    sink = Listing()
    events = emit(log, [0, 1, 2, 0, 1])
    runner = run(sink)
    events += emit(log, [2, 2, 1, 0, 0, 0])
    until(lambda: runner.status().delivered == 11)
    until(lambda: runner.status().behind == 0)
    status = runner.status().json()
    runner.stop()

    assert sorted(sink.taken) == sorted(map(id_of, events))
    assert status == {"name": "listing", "delivered": 11, "behind": 0, "problem": "", "since": None}
    assert sink.closed


def test_a_sink_that_fails_for_ever_stops_nothing_else(log: Log, run: Run, tmp_path: Path):
    """It is held back, and its status says since when, why and how far; the other sink has everything meanwhile."""
    broken = run(Listing("broken", [ValueError("the disk is on fire")] * 10_000), longest_pause=0.02)
    sound = run(SqliteSink(tmp_path / "events.db", "social"))
    for _ in range(20):
        emit(log, [0, 1, 2])
    until(lambda: sound.status().delivered == 60)
    until(lambda: broken.status().behind > 0)
    first = broken.status()
    emit(log, [0])
    until(lambda: sound.status().delivered == 61)
    until(lambda: broken.status().behind > 60)
    behind = [broken.status().behind]
    emit(log, [0, 1] * 600)
    until(lambda: broken.status().behind > 61)
    behind.append(broken.status().behind)
    until(lambda: sound.status().delivered == 1261)
    started = time.monotonic()
    broken.stop()

    assert (sound.status().problem, sound.status().behind) == ("", 0)
    assert (first.delivered, first.problem) == (0, "ValueError('the disk is on fire')")
    assert first.since == broken.status().since is not None
    assert behind == [61, 1000]
    assert time.monotonic() - started < 3


def test_each_failure_is_logged_and_the_pauses_grow(log: Log, run: Run):
    """Longer and longer, with some chance in it; after a success it begins anew."""
    sink = Listing(problems=[Unavailable("Not today.")] * 4)
    with structlog.testing.capture_logs() as lines:
        runner = run(sink, longest_pause=0.6)
        emit(log, [0])
        until(lambda: runner.status().delivered == 1)
    held = [line for line in lines if line["event"] == "sink_held_back"]

    assert [(line["sink"], line["problem"], line["log_level"]) for line in held] == [
        ("listing", "Not today.", "warning")
    ] * 4
    for line, (least, most) in zip(held, [(0.125, 0.25), (0.25, 0.5), (0.3, 0.6), (0.3, 0.6)], strict=True):
        assert least <= line["pause_s"] <= most
    assert lines[-1]["event"] == "sink_goes_on"
    assert runner.status().since is None


def test_a_sink_that_says_when_is_not_asked_before(log: Log, run: Run):
    """Even where the pause would be shorter."""
    sink = Listing(problems=[NotNow("Later.", 0.8)])
    runner = run(sink, longest_pause=0.01)
    emit(log, [0])
    until(lambda: runner.status().delivered == 1)

    assert sink.tries[1] - sink.tries[0] >= 0.8


def test_a_transactional_sink_that_fails_after_its_commit_gets_nothing_twice(log: Log, run: Run):
    """After a failure it is asked for its place first."""
    sink = Forgetful()
    events = emit(log, [0, 1, 2, 0, 1])
    runner = run(sink, longest_pause=0.01)
    until(lambda: runner.status().delivered == 5)

    assert sorted(sink.taken) == sorted(map(id_of, events))


def test_a_sink_of_another_log_is_held_back(log: Log, run: Run, tmp_path: Path):
    """With a log that was made anew, the sink's place means other events: it says so instead of leaving some out."""
    emit(log, [0, 0, 0])
    first = run(Listing())
    until(lambda: first.status().delivered == 3)
    first.stop()
    anew = SqliteLog(tmp_path / "anew.db", "social", partitions=3, create=True)
    sink = Listing()
    second = run(sink, log=tmp_path / "anew.db", longest_pause=0.01)
    until(lambda: second.status().problem)
    emit(anew, [0, 1])
    anew.close()

    assert "listing has events up to 0:2.0.0, which the log does not have" in second.status().problem
    assert sink.taken == []


def test_a_log_that_comes_back_is_read_again(log: Log, run: Run, path: Path):
    """A log that cannot be opened is a problem like others, until it can."""
    hidden = path.with_name("hidden.db")
    path.rename(hidden)
    sink = Listing()
    runner = run(sink, longest_pause=0.01)
    until(lambda: runner.status().problem)
    problem = runner.status().problem
    hidden.rename(path)
    emit(log, [1])
    until(lambda: runner.status().delivered == 1)

    assert "There is no log at" in problem
    assert runner.status().problem == ""


@pytest.mark.parametrize("held", [True, False])
def test_a_runner_stops_soon(log: Log, run: Run, held: bool):
    """While it is held back for a minute, and while it waits for events."""
    sink = Listing(problems=[NotNow("Later.", 60.0)] if held else [])
    emit(log, [0])
    runner = run(sink)
    until(lambda: sink.tries)
    started = time.monotonic()
    runner.stop()

    assert time.monotonic() - started < 2
    assert sink.closed
    assert f"engram-sink {sink.name}" not in [thread.name for thread in threading.enumerate()]
