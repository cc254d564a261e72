"""Timers: commands that an entity has handled later."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from engram import Command, Misuse
from engram.codec.codec import Codec
from engram.codec.record import Envelope, Kind, Record, encode_commands
from engram.image.image import Handled, Image
from engram.image.timers import FIRED_AT_ONCE, Timer, Timers
from engram.testing import scenario
from hypothesis import given
from hypothesis import strategies as st

from tests.image.clockwork import Clockwork, Ring, Stop, Wind, WindUntil, app


class Partition:
    """An image, and the records that made it."""

    def __init__(self) -> None:
        self.codec = Codec(app)
        self.image = Image(0, self.codec)
        self.records: list[Record] = []

    def send(self, time: int, *commands: tuple[str, Command[Any, Any]]) -> Handled:
        envelopes = [
            Envelope(c.__engram__.name or "", 1, key, c.model_dump_json().encode(), f"s{len(self.records)}.{n}", 0)
            for n, (key, c) in enumerate(commands)
        ]
        return self.handle(Kind.COMMANDS, time, encode_commands(envelopes, "test"))

    def tick(self, time: int) -> Handled:
        return self.handle(Kind.TICK, time, b"")

    def handle(self, kind: Kind, time: int, payload: bytes) -> Handled:
        self.records.append(Record(0, len(self.records), kind, time, payload))
        return self.image.handle(self.records[-1])

    def rang(self, key: str = "a") -> list[str]:
        return [text.split()[0] for text in self.image.entities["clockwork"][key].rang]  # type: ignore[attr-defined]


def replay(records: list[Record]) -> Image:
    image = Image(0, Codec(app))
    for record in records:
        image.handle(record)
    return image


def test_a_timer_fires_with_the_first_record_that_is_not_before_it():
    """Before its time nothing happens; then it fires once, before the record's own commands."""
    p = Partition()
    p.send(1000, ("a", Wind(what="x", ms=500)))
    p.send(1499, ("a", Ring(what="early")))
    handled = p.send(1500, ("a", Ring(what="own")))
    p.tick(9000)

    assert p.rang() == ["early", "x", "own"]
    assert len(handled.outcomes) == 1, "the writer gets the outcome of its own command only"
    assert [json.loads(e.body)["what"] for e in handled.events] == ["x", "own"]
    assert sorted(e[:4] for e in handled.events) == [e[:4] for e in handled.events], "places only grow"
    assert [e.root for e in handled.events] == ["0:0.0", "0:2.0"], "the timer's root is who scheduled it"


def test_a_tick_fires_what_is_due_in_the_order_of_time_then_of_scheduling():
    """Time first; of equal times, the one that was scheduled first."""
    p = Partition()
    p.send(0, ("a", Wind(what="late", ms=20)), ("a", Wind(what="one", ms=10)), ("a", Wind(what="two", ms=10)))
    p.tick(15)
    p.tick(100)

    assert p.rang() == ["one", "two", "late"]
    assert p.image.timers.next_due() is None


def test_a_cancelled_timer_does_not_fire():
    """Cancelled is gone; cancelling again, or nonsense, does no harm."""
    p = Partition()
    p.send(0, ("a", Wind(what="x", ms=10)))
    p.send(1, ("a", Stop(what="x")), ("a", Stop(what="x")), ("a", Stop(what="never was")))
    p.tick(100)

    assert p.rang() == []
    assert len(p.image.timers) == 0


@pytest.mark.parametrize(
    "handle", ["", "x", "1.2", "--7.0.0", "1.--2.3", "1.2.3.4", "²." * 2 + "²", "9" * 5000 + ".0.0"]
)
def test_nonsense_can_be_cancelled(handle: str):
    """Whatever a handler cancels, its partition goes on, and what waits still waits."""
    timers = Timers([Timer(10, 1, 2, 3, "a", "ring", 1, "{}")])
    timers.cancel(handle, "a")

    assert len(timers) == 1


def test_a_timer_is_cancelled_by_its_own_entity_alone():
    """Entities that came together from different partitions may hold the same handle: each cancels its own."""
    timers = Timers([Timer(10, 1, 2, 3, key, "ring", 1, "{}") for key in ("a", "b")])
    timers.cancel("1.2.3", "c")
    timers.cancel("1.2.3", "b")
    timers.cancel("1.2.3", "b")

    assert [timer.key for timer in timers.all()] == ["a"]
    assert [place[-1] for place in timers.due(10)] == ["a"]


def test_a_rejected_command_schedules_and_cancels_nothing():
    """All or nothing holds for timers too."""
    p = Partition()
    before = p.image.timers.all()
    p.send(0, ("a", Wind(what="x", ms=10, refuse=True)))

    assert p.image.timers.all() == before == []


def test_a_timer_in_the_past_fires_next():
    """With the next record, whatever it is."""
    p = Partition()
    p.send(5000, ("a", WindUntil(at=datetime(1970, 1, 1, tzinfo=UTC))), ("a", Wind(what="now", ms=-10)))
    p.tick(5000)

    assert p.rang() == ["until", "now"]


def test_what_a_timer_schedules_waits_for_the_next_record():
    """A timer that schedules another at once does not keep a record busy for ever."""
    p = Partition()
    p.send(0, ("a", Wind(what="x", ms=0, again_ms=0)))
    p.tick(1)
    after_one = p.rang()
    p.tick(1)

    assert (after_one, p.rang()) == (["x"], ["x", "x+"])


def test_a_timer_whose_handler_fails_is_quarantined():
    """It leaves no trace, it is on the list, and the others fire."""
    p = Partition()
    p.send(0, ("a", Wind(what="broken", ms=1)), ("a", Wind(what="fine", ms=1)))
    handled = p.tick(10)

    assert p.rang() == ["fine"]
    assert [(row.command, row.key) for row in p.image.quarantine.listed] == [("ring", "a")]
    assert len(handled.failures) == 1


def test_a_crowd_of_timers_fires_over_several_records():
    """One record fires so many at most; none is forgotten."""
    p = Partition()
    for start in range(0, FIRED_AT_ONCE + 500, 500):
        p.send(0, *[(f"k{start + n}", Wind(what="x", ms=5)) for n in range(500)])
    p.tick(10)
    left = len(p.image.timers)
    p.tick(10)

    assert (left, len(p.image.timers)) == (500, 0)


def test_a_time_without_a_zone_is_refused():
    """The message says what to add; the command is quarantined."""
    with pytest.raises(Misuse, match="time zone"):
        Partition().image._context.schedule(datetime(2024, 1, 1), Ring(what="x"))  # noqa: DTZ001


def test_cancelled_timers_do_not_pile_up():
    """A heap of cancelled timers is made anew; what waits stays."""
    p = Partition()
    for n in range(3000):
        p.send(n, ("a", Wind(what="x", ms=10**9)), ("a", Stop(what="x")))

    assert len(p.image.timers._heap) < 2100


moments = st.integers(0, 400)
names = st.sampled_from(["a", "b", "c"])
commands = st.one_of(
    st.builds(Wind, what=names, ms=st.integers(-5, 80), again_ms=st.none() | st.integers(0, 30), refuse=st.booleans()),
    st.builds(Stop, what=names),
    st.builds(Ring, what=st.sampled_from(["own", "broken"])),
)
steps = st.lists(
    st.tuples(moments, st.lists(st.tuples(st.sampled_from(["k1", "k2"]), commands), max_size=3)), max_size=25
)


@given(steps)
def test_live_is_replay_is_snapshot_and_tail(story: list[tuple[int, list[tuple[str, Command[Any, Any]]]]]):
    """Timers fire at the same places, with the same effects, whoever handles the records and from where on."""
    p = Partition()
    events = []
    for time, sent in story:
        handled = p.send(time, *sent) if sent else p.tick(time)
        events.append([tuple(e[:4]) for e in handled.events])
    cut = random.Random(len(story)).randrange(len(story) + 1)
    half = replay(p.records[:cut])
    frozen = half.begin_freeze()
    while frozen.advance(100):
        pass
    back = Image(0, Codec(app))
    back.load(frozen.rows, type(frozen.memory).model_validate_json(frozen.memory.model_dump_json()))
    tail = [[tuple(e[:4]) for e in back.handle(record).events] for record in p.records[cut:]]

    assert replay(p.records).digest() == p.image.digest() == back.digest()
    assert tail == events[cut:]


def test_a_scenario_fires_timers_as_time_passes():
    """Each at its own time, though time jumps."""
    s = scenario(app)
    start = s.now
    s.given("a", Wind(what="x", ms=1000, again_ms=500))
    s.pass_time(timedelta(minutes=1))

    first, second = (start + timedelta(milliseconds=ms) for ms in (1000, 1500))
    assert s.state("a", Clockwork).rang == [f"x at {first:%H:%M:%S}.000", f"x+ at {second:%H:%M:%S}.500"]
    s.check()
