"""The events of all partitions as one stream: every one once and in order, from wherever, whoever lets them out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest
from engram.codec.record import Kind
from engram.dev.kafka import Brokers
from engram.errors import Misuse
from engram.log.base import Entry, Log
from engram.log.cursor import NOWHERE, Cursor, Place, cursor_of
from engram.log.kafka.log import KafkaLog
from engram.log.kafka.settings import parse_kafka_url
from engram.log.memory import MemoryLog
from engram.log.sqlite import SqliteLog
from engram.log.stream import EventReader, NewEvents, cause_of, described, id_of
from engram.model.effects import OutEvent
from hypothesis import given
from hypothesis import strategies as st

from tests.log.emitting import NOON, emit, out

SECONDS = 60.0

places = st.builds(Place, st.integers(0, 10**12), st.integers(-10_000, 1000), st.integers(0, 10**6))
cursors = st.builds(
    Cursor, st.sampled_from(["social", "a", "shop_2"]), st.just(64), st.dictionaries(st.integers(0, 63), places)
)


def read_all(log: Log, after: str = "start", *, limit: int = 1000) -> list[OutEvent]:
    reader = EventReader(log, cursor_of(after, log))
    found: list[OutEvent] = []
    while events := reader.read(limit):
        assert len(events) <= limit
        found += events
    return found


@pytest.fixture(params=["memory", "sqlite"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Log]:
    """A log of three partitions."""
    if request.param == "memory":
        yield MemoryLog("social", 3)
    else:
        with closing(SqliteLog(tmp_path / "log.db", "social", partitions=3, create=True)) as log:
            yield log


# Cursors


@given(cursors)
def test_a_cursor_comes_back_from_its_text(cursor: Cursor):
    """What is written is read again, and needs no escaping in a URL's query."""
    text = str(cursor)
    app, _, _ = text.partition(".")
    again = Cursor.parse(text, app, 64)

    assert again == cursor
    assert [again.place(p) for p in range(64)] == [cursor.place(p) for p in range(64)]
    assert set(text) <= set("abcdefghijklmnopqrstuvwxyz0123456789_.~:-")


@given(cursors, st.data())
def test_a_damaged_cursor_is_refused(cursor: Cursor, data: st.DataObject):
    """Cut off, or with a character changed or left out, it is not taken for another."""
    text = str(cursor)
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from("0123456789.~:-ax ").filter(lambda character: character != text[at]))
    for damaged in (text[:at], text[:at] + text[at + 1 :], text[:at] + other + text[at + 1 :]):
        with pytest.raises(Misuse, match="cursor"):
            Cursor.parse(damaged, text.partition(".")[0], 64)


@pytest.mark.parametrize("text", ["", "x", "3:1042.7", "social.3", "start ", "Ende", "social.3~0:1.0.0", "~" * 5000])
def test_what_is_no_cursor_is_refused(text: str):
    """The sentence is short, and has the words that one can begin with."""
    with pytest.raises(Misuse, match=r"is not a cursor, or is not whole.*write start or end") as refusal:
        cursor_of(text, MemoryLog("social", 3))

    assert len(str(refusal.value)) < 200


def test_the_cursor_of_another_app_or_number_of_partitions_is_refused():
    """Both apps and both numbers are told."""
    cursor = str(Cursor("shop", 4))

    with pytest.raises(Misuse, match="of app shop with 4 partitions; this is social with 3"):
        cursor_of(cursor, MemoryLog("social", 3))
    with pytest.raises(Misuse, match="of app shop with 4 partitions; this is shop with 3"):
        cursor_of(cursor, MemoryLog("shop", 3))


def test_a_cursor_beyond_the_end_of_the_log_is_refused(log: Log):
    """It is of another log of the same app: what it would skip there was never read."""
    (event,) = emit(log, [1])
    cursor = str(Cursor("social", 3).past(event))
    cursor_of(cursor, log)

    with pytest.raises(Misuse, match="at record 0 of partition 1, where the log ends at 0: it is of another log"):
        cursor_of(cursor, MemoryLog("social", 3))


# Reading


def test_events_come_by_time_and_in_the_order_of_their_partition(log: Log):
    """Those of several partitions by their times; those of one in their order, whatever their times say."""
    log.append([Entry(p, Kind.TICK, 0, b"") for p in (0, 0, 0, 1, 2)])
    events = [out(0, 0, time=5), out(0, 1, time=9), out(0, 2, time=7), out(1, 0, time=8), out(2, 0, time=6)]
    log.append([], events)

    assert [id_of(event) for event in read_all(log)] == ["0:0.0.0", "2:0.0.0", "1:0.0.0", "0:1.0.0", "0:2.0.0"]


def test_a_timers_events_come_before_those_of_its_records_commands(log: Log):
    """Their indices are below zero; a cursor between them is one like any other."""
    log.append([Entry(0, Kind.TICK, 0, b"")] * 2)
    log.append([], [out(0, 1, -10_000, 0), out(0, 1, -9_999, 0), out(0, 1, -9_999, 1), out(0, 1, 0, 0)])
    first, *rest = read_all(log)

    assert [id_of(event) for event in (first, *rest)] == ["0:1.-10000.0", "0:1.-9999.0", "0:1.-9999.1", "0:1.0.0"]
    assert cause_of(rest[1]) == "0:1.-9999"
    assert read_all(log, str(Cursor("social", 3).past(first))) == rest


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50)), max_size=60), st.integers(1, 7), st.data())
def test_pages_from_any_cursor_on_are_the_rest(emitted: list[tuple[int, int]], limit: int, data: st.DataObject):
    """However the stream is cut into pages, and wherever one comes back: every event once, none left out."""
    log = MemoryLog("social", 3)
    for partition, moment in emitted:
        emit(log, [partition], time=moment)
    whole = read_all(log)
    cursor = Cursor("social", 3)
    for event in whole[: data.draw(st.integers(0, len(whole)))]:
        cursor = cursor.past(event)
    rest = read_all(log, str(cursor), limit=limit)

    assert len(whole) == len(emitted)
    for partition in range(3):
        own = [event for event in whole if event.partition == partition]
        assert own == log.events(partition, after=NOWHERE, limit=1000)
        assert [e for e in rest if e.partition == partition] == [
            event for event in own if (event.offset, event.index, event.number) > cursor.place(partition)
        ]


def test_the_cursor_of_a_reader_is_after_what_it_returned(log: Log):
    """Also while it has fetched more: nothing that was not returned is skipped by whoever comes back."""
    emit(log, [0, 1, 2] * 150)
    reader = EventReader(log, cursor_of("start", log))
    first = reader.read(7)

    assert len(first) == 7
    assert first + read_all(log, str(reader.cursor)) == read_all(log)


def test_what_waits_is_counted_up_to_a_bound(log: Log):
    """Without being read: it is there for the next reads, all of it and in order."""
    emit(log, [0, 1, 2, 1] * 100)
    reader = EventReader(log, cursor_of("start", log))
    reader.read(10)
    counted = [reader.waiting(most) for most in (1, 30, 1000)]
    emit(log, [2])

    assert counted == [1, 30, 390]
    assert reader.waiting(1000) == 391
    assert len(reader.read(1000)) == 391
    assert reader.waiting(1000) == 0


def test_a_read_is_bounded_in_bytes(log: Log):
    """Large events come a few at a time, and at least one."""
    emit(log, [0] * 12, body={"text": "x" * 1_000_000})
    reader = EventReader(log, cursor_of("start", log))
    sizes = []
    while events := reader.read(100):
        sizes.append(len(events))

    assert sizes == [5, 5, 2]


def test_the_end_is_before_the_events_of_whatever_is_logged_next(log: Log):
    """What was logged before is left out, a timer that fires with the next record is not."""
    emit(log, [0, 0, 2])
    end = str(cursor_of("end", log))
    offsets = log.append([Entry(p, Kind.TICK, 0, b"") for p in (0, 1)])
    log.append([], [out(0, offsets[0], -10_000), out(1, offsets[1])])

    assert {id_of(event) for event in read_all(log, end)} == {"0:2.-10000.0", "1:0.0.0"}


def test_an_event_is_described_with_all_that_is_known_of_it():
    """Its own id, the command that emitted it, and its body as it was emitted."""
    about = described(out(2, 7, 3, 1, body={"who": "ada", "whom": "bob"}, root="0:5.1"))

    assert about == {
        "id": "2:7.3.1",
        "time": "2023-11-14T22:13:20.000Z",
        "name": "followed",
        "version": 1,
        "key": "ada",
        "body": {"who": "ada", "whom": "bob"},
        "cause": "2:7.3",
        "root": "0:5.1",
    }


# Waiting


def follow(log: Log, count: int, ready: Callable[[], None]) -> list[OutEvent]:
    """The next events as somebody sees them who waits; `ready` is called when nothing is left to read."""
    found: list[OutEvent] = []
    with closing(NewEvents(log)) as news:
        reader = EventReader(log, cursor_of("end", log))
        deadline = time.monotonic() + SECONDS
        while len(found) < count:
            assert time.monotonic() < deadline, f"only {len(found)} of {count} came"
            news.clear()
            events = reader.read(10)
            found += events
            if not events:
                ready()
                news.wait(5.0)
    return found


def test_whoever_waits_is_woken_by_events(log: Log):
    """Long before the time is over, for each of many events that come one by one."""
    turn = threading.Semaphore(0)
    emitted: list[OutEvent] = []

    def write() -> None:
        for number in range(60):
            assert turn.acquire(timeout=SECONDS)
            emitted.extend(emit(log, [number % 3]))

    writer = threading.Thread(target=write)
    writer.start()
    started = time.monotonic()
    found = follow(log, 60, turn.release)
    writer.join()

    # A slow machine may have two of them written at once: then those of two partitions come by number.
    for partition in range(3):
        assert [e for e in found if e.partition == partition] == [e for e in emitted if e.partition == partition]
    assert time.monotonic() - started < 45


def test_a_wait_ends_when_it_is_woken_or_over(log: Log):
    """By another thread, or after the time that was given."""
    with closing(NewEvents(log)) as news:
        news.clear()
        started = time.monotonic()
        news.wait(0.05)
        over = time.monotonic() - started
        threading.Timer(0.05, news.wake).start()
        news.wait(SECONDS)

    assert 0.04 < over < SECONDS / 2
    assert time.monotonic() - started < SECONDS / 2


def test_the_stream_of_a_kafka_log(kafka: Brokers):
    """Events that another process's log lets out arrive, all once and in order, for two readers at different places."""
    settings = parse_kafka_url(kafka.url(f"stream-{uuid4().hex[:8]}"))
    with (
        closing(KafkaLog(settings, "social", partitions=3, create=True)) as writing,
        closing(KafkaLog(settings, "social")) as log,
    ):
        before = emit(writing, [0, 1, 2, 0])
        whole = read_all(writing)
        turn = threading.Semaphore(0)
        emitted: list[OutEvent] = []

        def write() -> None:
            assert turn.acquire(timeout=SECONDS)
            emitted.extend(emit(writing, [2, 0, 1, 1, 2], time=NOON + 100))

        writer = threading.Thread(target=write)
        writer.start()
        found = follow(log, 5, turn.release)
        writer.join()
        middle = Cursor("social", 3).past(before[0]).past(before[1])

        assert sorted(whole) == sorted(before)
        assert sorted(found) == sorted(emitted)
        for partition in range(3):
            assert [e for e in found if e.partition == partition] == [e for e in emitted if e.partition == partition]
        assert sorted(read_all(log, str(middle))) == sorted([*before[2:], *emitted])
        assert sorted(read_all(log)) == sorted([*before, *emitted])
