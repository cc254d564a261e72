"""The quarantine of an image: commands that failed, retried and dropped by records like any other."""

from __future__ import annotations

from typing import Any

import pytest
from engram import Command
from engram.cli.log import described, lines_of
from engram.codec.codec import Codec
from engram.codec.record import Kind, Record, encode_commands
from engram.image import quarantine as bounds
from engram.image.image import Handled, Image
from engram.image.quarantine import LISTED, Quarantine, QuarantineRow
from engram.image.timers import FIRED_AT_ONCE
from engram.testing.checked import CheckedImage
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.image import clockwork
from tests.image.workshop import CODEC, Count, Sent, Work, commands, envelope, handle, replies, restored, whole_freeze

Place = tuple[int, int]
FAILED = 'quarantined {"error": "RuntimeError"}'


@pytest.fixture
def image() -> Image:
    return Image(0, CODEC)


def released(image: Image, place: Place, *sent: Sent, time: int = 0) -> Record:
    """The next record of the partition, which takes a command off the list and has these."""
    payload = encode_commands([envelope(s, image.codec) for s in sent], "writer", releases=[place])
    return Record(image.partition, image.offset, Kind.COMMANDS, time, payload)


def retry(image: Image, place: Place, command: Command[Any, Any], *, sequence: int, time: int = 0) -> Handled:
    """Retries as a gateway does."""
    sent = Sent("ada", command, sequence=sequence, idempotency_key=f"retry 0:{place[0]}.{place[1]}")
    return image.handle(released(image, place, sent, time=time))


def fail(image: Image, sequence: int, *, time: int = 0) -> Place:
    """Has a command fail, and returns where."""
    handle(image, Sent("ada", Work(end="fail"), sequence=sequence), time=time)
    return image.offset - 1, 0


def on_list(image: Image) -> dict[Place, int]:
    return {(row.offset, row.index): row.failures for row in image.quarantine.listed}


# Dropping


def test_a_record_without_commands_drops_and_does_nothing_else(image):
    """It is handled like any record: the command is off the list, the count of failures and the state are as before."""
    first, second = fail(image, 1), fail(image, 2)
    handle(image, Sent("ada", Count(), sequence=3))
    sessions = {name: seen.sequence for name, seen in image.dedupe.sessions.items()}
    handled = image.handle(released(image, first))

    assert on_list(image) == {second: 1}
    assert (handled.outcomes, handled.messages, handled.events, handled.failures) == ([], [], [], {})
    assert (image.quarantine.count, image.offset, image.changed, image.last_index) == (2, 4, 4, 0)
    assert {name: seen.sequence for name, seen in image.dedupe.sessions.items()} == sessions
    assert image.handled == 3


def test_what_is_not_on_the_list_can_be_dropped(image):
    """A place where nothing failed, or that was dropped before, is no mistake."""
    place = fail(image, 1)
    for dropped in (place, place, (0, 7), (999, 0)):
        image.handle(released(image, dropped))

    assert (on_list(image), image.quarantine.count, image.offset) == ({}, 1, 5)


def test_a_record_without_commands_is_read_everywhere(image):
    """It is decoded, told by `engram log show`, and handled by an image under observation."""
    place = fail(image, 1)
    record = released(image, place, time=5)
    checked = CheckedImage(0, CODEC)
    checked.handle(commands(checked.image, Sent("ada", Work(end="fail"), sequence=1)))
    checked.handle(record)
    about = described(record, CODEC)

    assert CODEC.decode_record(record).commands == []
    assert (about["commands"], about["releases"], about["writer"]) == ([], ["0.0"], "writer")
    assert list(lines_of(about))[1:] == ["    takes 0:0.0 out of quarantine"]
    assert on_list(checked.image) == {}


def test_the_command_of_a_timer_can_be_dropped():
    """It failed before the first command of its record, with an index below 0."""
    image = Image(0, Codec(clockwork.app))
    handle(image, Sent("a", clockwork.Wind(what="broken", ms=10), sequence=1))
    handle(image, Sent("a", clockwork.Stop(what="x"), sequence=2), time=10)
    (place,) = on_list(image)
    image.handle(released(image, place))

    assert place == (1, -FIRED_AT_ONCE)
    assert on_list(image) == {}


# Retrying


def test_a_retry_that_succeeds_leaves_the_list(image):
    """One record takes the old one off and has the command handled as a new one, with a reply."""
    place = fail(image, 1)
    handled = retry(image, place, Count(by=5), sequence=2)

    assert replies(handled) == ["reply 5"]
    assert (on_list(image), image.quarantine.count) == ({}, 1)


def test_a_retry_that_is_rejected_leaves_the_list(image):
    """A rejection is a reply: nobody has to look at it again."""
    place = fail(image, 1)
    handled = retry(image, place, Work(end="reject"), sequence=2)

    assert replies(handled) == ['rejected {"code": "asked_to", "text": "As asked."}']
    assert on_list(image) == {}


def test_a_retry_that_fails_again_is_listed_with_one_failure_more(image):
    """At its new position, with the new time and its body; the old position is off the list."""
    place = fail(image, 1, time=100)
    for times in range(2, 5):
        handled = retry(image, place, Work(end="fail"), sequence=times, time=100 * times)
        assert replies(handled) == [FAILED]
        place = (image.offset - 1, 0)
        assert on_list(image) == {place: times}
    (row,) = image.quarantine.listed

    assert (row.command, row.key, row.time, row.error) == ("work", "ada", 400, "RuntimeError: as asked")
    assert CODEC.decode_command(row.command, row.version, row.body.encode()) == Work(end="fail")
    assert image.quarantine.count == 4


def test_the_count_of_failures_is_of_the_retried_command_alone(image):
    """A command that fails in a later record has failed once."""
    place = fail(image, 1)
    retry(image, place, Work(end="fail"), sequence=2)
    other = fail(image, 3)

    assert on_list(image) == {(1, 0): 2, other: 1}


def test_two_retries_of_one_command_have_it_handled_once(image):
    """The second record finds the idempotency key of the first, and gives its outcome again, be it a reply or not."""
    for start, command, outcome in ((1, Count(), "reply 1"), (4, Work(end="fail"), FAILED)):
        place = fail(image, start)
        first = retry(image, place, command, sequence=start + 1)
        before = on_list(image)
        second = retry(image, place, command, sequence=start + 2)
        assert replies(first) == replies(second) == [outcome]
        assert on_list(image) == before
    assert image.quarantine.count == 3


# Bounds


def test_a_full_list_has_room_again_after_a_release(image):
    """Beyond the bound failures are only counted; a retry that fails again always has a place."""
    handle(image, *(Sent("ada", Work(end="fail"), sequence=n) for n in range(LISTED + 3)))
    retry(image, (0, 5), Work(end="fail"), sequence=LISTED + 3)
    unlisted = fail(image, LISTED + 4)

    assert image.quarantine.count == LISTED + 5
    assert (len(on_list(image)), on_list(image)[1, 0]) == (LISTED, 2)
    assert (0, 5) not in on_list(image)
    assert unlisted not in on_list(image)


def test_the_list_is_bounded_in_size_too(monkeypatch):
    """Large bodies fill it sooner; what leaves it, or comes back from a snapshot, counts as much as when it came."""
    monkeypatch.setattr(bounds, "LISTED_CHARACTERS", 10)
    quarantine = Quarantine()
    problem = ValueError("no")
    for offset in range(4):
        quarantine.add(QuarantineRow(offset, 0, "c", "k", 1, "x" * 4), problem)
    listed = [row.offset for row in quarantine.listed]
    quarantine.release(0, 0)
    again = Quarantine()
    again.load(quarantine.listed, quarantine.count)
    for one in (quarantine, again):
        one.add(QuarantineRow(4, 0, "c", "k", 1, "x" * 6), problem)
        one.add(QuarantineRow(5, 0, "c", "k", 1, "x"), problem)

    assert listed == [0, 1]
    assert [row.offset for row in quarantine.listed] == [row.offset for row in again.listed] == [1, 4]


# Replay

_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.lists(st.sampled_from(["reply", "reject", "fail"]), min_size=1, max_size=4)),
        st.tuples(st.just("retry"), st.integers(0, 5), st.sampled_from(["reply", "reject", "fail"])),
        st.tuples(st.just("retry twice"), st.integers(0, 5), st.sampled_from(["reply", "fail"])),
        st.tuples(st.just("drop"), st.integers(0, 5)),
    ),
    max_size=12,
)


class _Expected:
    """The list as it should be, kept by hand."""

    def __init__(self) -> None:
        self.listed: dict[Place, int] = {}
        self.count = 0

    def failed(self, place: Place, times: int = 1) -> None:
        self.listed[place] = times
        self.count += 1

    def chosen(self, number: int) -> Place:
        return list(self.listed)[number % len(self.listed)] if self.listed else (0, 3)


def _history(steps: list[Any], image: Image) -> tuple[list[Record], _Expected]:
    """Handles what the steps ask for; the records, and what the list should be after them."""
    expected, records = _Expected(), []

    def take(record: Record) -> int:
        records.append(record)
        image.handle(record)
        return record.offset

    for number, (what, *how) in enumerate(steps):
        if what == "send":
            sent = [Sent("ada", Work(end=end), f"s{number}", i) for i, end in enumerate(how[0])]
            offset = take(commands(image, *sent, time=number))
            for index, end in enumerate(how[0]):
                if end == "fail":
                    expected.failed((offset, index))
            continue
        place = expected.chosen(how[0])
        times = expected.listed.pop(place, 0)
        if what == "drop":
            take(released(image, place, time=number))
            continue
        key = f"retry 0:{place[0]}.{place[1]} {number}"
        sent = Sent("ada", Work(end=how[1]), f"s{number}", 0, key)
        offset = take(released(image, place, sent, time=number))
        if how[1] == "fail":
            expected.failed((offset, 0), times + 1)
        if what == "retry twice":
            take(released(image, place, sent._replace(session=f"again{number}"), time=number))
    return records, expected


@settings(deadline=None)
@given(_STEPS, st.integers(0, 20))
def test_live_is_replay_is_snapshot_and_tail(steps: list[Any], cut: int):
    """Whatever is sent, retried and dropped, in whatever order: the list is as expected, and the same from the records
    alone, and from a snapshot anywhere among them and the rest."""
    live = Image(0, CODEC)
    records, expected = _history(steps, live)
    again = Image(0, CODEC)
    for record in records[:cut]:
        again.handle(record)
    resumed = restored(*whole_freeze(again))
    for record in records[cut:]:
        again.handle(record)
        resumed.handle(record)

    assert (on_list(live), live.quarantine.count) == (expected.listed, expected.count)
    assert live.quarantine.listed == again.quarantine.listed == resumed.quarantine.listed
    assert live.digest() == again.digest() == resumed.digest()
