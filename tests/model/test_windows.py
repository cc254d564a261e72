"""Windows: counts by time that come out the same however late and out of order things become known."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise

import pytest
from engram import App, Command, Context, Entity, Event, Misuse, Query, Rejected, Window, Windows
from engram.model.context import Means, Outgoing
from engram.model.limits import Limits
from engram.testing import scenario
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AwareDatetime

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
MS = timedelta(milliseconds=1)
NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)


@dataclass(slots=True, kw_only=True)
class Hourly(Windows, size=HOUR, lateness=10 * MINUTE):
    """Tumbling."""


@dataclass(slots=True, kw_only=True)
class LastHour(Windows, size=HOUR, slide=20 * MINUTE, lateness=10 * MINUTE):
    """Sliding."""


class Closed(Event, name="closed"):
    start: datetime
    end: datetime
    counts: dict[str, int]


@dataclass(frozen=True)
class Metered:
    """An app that counts in one kind of windows, with the classes of its commands and of its query."""

    app: App
    meter: type[Entity]
    count: type[Command]
    close: type[Command]
    open: type[Query]


def metered(kind: type[Windows]) -> Metered:
    @dataclass(slots=True, kw_only=True)
    class Meter(Entity, name="meter"):
        windows: kind = field(default_factory=kind)
        kept: list[Window] = field(default_factory=list)

    class Count(Command[Meter, bool], name="count"):
        counter: str = "n"
        amount: int = 1
        at: AwareDatetime | None = None
        refuse: bool = False

        def handle(self, meter: Meter, ctx: Context) -> bool:
            counted = meter.windows.add(self.counter, ctx, at=self.at, amount=self.amount, close=Close())
            if self.refuse:
                raise Rejected("refused")
            return counted

    class Close(Command[Meter, None], name="close"):
        def handle(self, meter: Meter, ctx: Context) -> None:
            for window in meter.windows.take_closed(ctx, close=self):
                meter.kept.append(window)
                ctx.emit(Closed(start=window.start, end=window.end, counts=window.counts))

    class Open(Query[Meter, list[Window]], name="open"):
        def answer(self, meter: Meter) -> list[Window]:
            return meter.windows.open()

    return Metered(App("meters", commands=[Count, Close], queries=[Open], events=[Closed]), Meter, Count, Close, Open)


HOURS = metered(Hourly)
LAST_HOUR = metered(LastHour)


class Telling:
    """A scenario with one meter."""

    def __init__(self, metered: Metered, *, start: datetime = NOON) -> None:
        self.metered = metered
        self.s = scenario(metered.app, partitions=1, start=start)

    def count(self, at: datetime | None = None, **fields) -> bool:
        return self.s.given("m", self.metered.count(at=at, **fields))

    @property
    def windows(self) -> Windows:
        return self.s.state("m", self.metered.meter).windows

    def open(self) -> list[tuple[datetime, datetime, dict[str, int]]]:
        return [(w.start, w.end, w.counts) for w in self.s.ask("m", self.metered.open())]

    def closed(self) -> list[tuple[datetime, datetime, dict[str, int]]]:
        """What came out."""
        out = self.s._log.events(0, after=(-1, 0, 0), limit=10_000)
        events = [Closed.model_validate_json(event.body) for event in out]
        return [(event.start, event.end, event.counts) for event in events]

    def timers(self) -> list[int]:
        return [timer.due for timer in self.s._images[0].image.timers.all()]


@pytest.fixture
def hours():
    return Telling(HOURS)


@pytest.fixture
def sliding():
    return Telling(LAST_HOUR)


def hour(number: int, **counts: int) -> tuple[datetime, datetime, dict[str, int]]:
    """The tumbling window that starts so many hours after noon."""
    return NOON + number * HOUR, NOON + (number + 1) * HOUR, counts


# Counting


def test_what_happens_now_is_in_the_window_of_now(hours):
    """Without a time the record's time counts, and the counts can be read at once."""
    hours.s.pass_time(59 * MINUTE)
    counted = hours.count(), hours.count(counter="m", amount=5)
    hours.s.pass_time(MINUTE)
    hours.count()

    assert counted == (True, True)
    assert hours.open() == [hour(0, m=5, n=1), hour(1, n=1)]
    assert hours.closed() == []


def test_what_comes_out_of_order_is_counted_where_it_belongs(hours):
    """Event time decides, in either direction, as long as the lateness allows."""
    hours.s.pass_time(HOUR + 5 * MINUTE)
    for at in (NOON + HOUR, NOON + 3 * MINUTE, NOON + HOUR + MINUTE, NOON):
        assert hours.count(at)

    assert hours.open() == [hour(0, n=2), hour(1, n=2)]


def test_the_lateness_ends_exactly(hours):
    """A millisecond before it is over a late one is counted; then it is too late, and is counted as that."""
    at = NOON + 59 * MINUTE
    hours.s.at(NOON + HOUR + 10 * MINUTE - MS)
    before = hours.count(at), hours.open()
    hours.s.pass_time(MS)
    after = hours.count(at, amount=3), hours.count(at, counter="m")

    assert before == (True, [hour(0, n=1)])
    assert after == (False, False)
    assert hours.windows.too_late == {"n": 3, "m": 1}
    assert (hours.open(), hours.closed()) == ([], [hour(0, n=1)])


def test_too_late_is_too_late_without_any_window(hours):
    """The time decides, not whether a window happened to be there to be closed."""
    assert not hours.count(NOON - HOUR - MS)
    assert hours.open() == []
    assert hours.timers() == []


def test_the_future_is_now(hours):
    """A clock that is ahead makes no windows ahead of time."""
    assert hours.count(NOON + timedelta(days=365))
    assert hours.open() == [hour(0, n=1)]


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=14)), timezone(-timedelta(hours=12))])
def test_the_ends_of_the_calendar_are_only_very_early_and_very_late(hours, zone):
    """Times that no window could be made of are too late, and now, like others."""
    assert not hours.count(datetime.min.replace(tzinfo=zone))
    assert hours.count(datetime.max.replace(tzinfo=zone))
    assert hours.open() == [hour(0, n=1)]


def test_a_time_zone_changes_nothing(hours):
    """The same moment in another zone is in the same window, and windows are told in UTC."""
    hours.count(NOON)
    hours.count(NOON.astimezone(timezone(timedelta(hours=5, minutes=30))))
    assert hours.open() == [hour(0, n=2)]


@pytest.mark.parametrize(
    ("size", "start"),
    [
        (timedelta(days=7), datetime(2024, 1, 1, tzinfo=UTC)),  # a Monday
        (timedelta(days=1), datetime(2024, 1, 4, tzinfo=UTC)),
        (timedelta(hours=6), datetime(2024, 1, 4, 12, tzinfo=UTC)),
        (timedelta(minutes=5), datetime(2024, 1, 4, 13, 35, tzinfo=UTC)),
        (timedelta(milliseconds=500), datetime(2024, 1, 4, 13, 37, 42, 500_000, tzinfo=UTC)),
    ],
)
def test_windows_begin_where_people_expect(size, start):
    """Weeks on Mondays, days at midnight, parts of them at round times, all in UTC."""

    @dataclass(slots=True, kw_only=True)
    class Sized(Windows, size=size):
        """Tumbling."""

    telling = Telling(metered(Sized), start=datetime(2024, 1, 4, 13, 37, 42, 567_000, tzinfo=UTC))
    telling.count()
    assert telling.open() == [(start, start + size, {"n": 1})]


def test_times_before_the_origin_are_times():
    """Windows are counted from a Monday in 1970, and nothing is special about it."""
    telling = Telling(HOURS, start=datetime(1970, 1, 1, 0, 5, tzinfo=UTC))
    start = datetime(1969, 12, 31, 23, tzinfo=UTC)
    assert telling.count(start + 58 * MINUTE)
    assert telling.open() == [(start, start + HOUR, {"n": 1})]


def test_a_counter_that_is_back_at_zero_is_not_listed(hours):
    """Counts have what is not zero, sorted; a window asks for any counter."""
    for counter, amount in (("refunds", -2), ("clicks", 1), ("likes", 1), ("likes", -1)):
        hours.count(counter=counter, amount=amount)

    [window] = hours.s.ask("m", HOURS.open())
    assert list(window.counts.items()) == [("clicks", 1), ("refunds", -2)]
    assert (window.count("clicks"), window.count("likes"), window.count("views")) == (1, 0, 0)


def test_a_handler_that_refuses_has_counted_nothing(hours):
    """Counts, what came too late, and the timer are taken back with the rest."""
    refused = HOURS.count(refuse=True)
    hours.s.when("m", refused).rejected("refused")
    assert hours.timers() == []
    hours.count()
    before = hours.windows, hours.timers()
    hours.s.when("m", refused).rejected("refused")
    hours.s.when("m", HOURS.count(refuse=True, at=NOON - MINUTE)).rejected("refused")
    hours.s.when("m", HOURS.count(refuse=True, at=NOON - HOUR)).rejected("refused")

    assert (hours.windows, hours.timers()) == before


# Closing


def test_a_window_closes_when_nothing_can_be_added(hours):
    """It is handed out once, at its end and the lateness, by a timer and without any command."""
    hours.count()
    hours.s.pass_time(HOUR + 10 * MINUTE - MS)
    before = hours.open(), hours.closed()
    hours.s.pass_time(MS)
    after = hours.open(), hours.closed()
    hours.s.pass_time(timedelta(days=1))

    assert before == ([hour(0, n=1)], [])
    assert after == ([], [hour(0, n=1)])
    assert hours.closed() == [hour(0, n=1)]
    assert (hours.windows.closed, hours.windows.panes, hours.timers()) == (NOON + HOUR, {}, [])


def test_windows_without_counts_are_never_seen(hours):
    """After a long silence only what was counted comes out, and no timer waits in between."""
    hours.count()
    hours.s.pass_time(10 * HOUR)
    hours.count()
    hours.s.pass_time(10 * HOUR)

    assert hours.closed() == [hour(0, n=1), hour(10, n=1)]


def test_a_late_one_brings_the_timer_forward(hours):
    """One timer waits, and it is that of the next window to close, also when that becomes known later."""
    hours.s.pass_time(HOUR)
    hours.count()
    first = hours.timers()
    hours.count(NOON + 59 * MINUTE)
    second = hours.timers()
    hours.s.at(NOON + HOUR + 10 * MINUTE)

    assert [len(first), len(second), len(hours.timers())] == [1, 1, 1]
    assert first[0] - second[0] == HOUR / MS
    assert hours.closed() == [hour(0, n=1)]
    assert hours.timers() == first


def test_closing_too_early_closes_nothing(hours):
    """Whoever sends the closing command finds nothing to close, and the timer stays the only one."""
    hours.count()
    before = hours.windows, hours.timers()
    hours.s.given("m", HOURS.close())
    assert (hours.windows, hours.timers(), hours.closed()) == (*before, [])


def test_closing_an_entity_without_counts_is_nothing(hours):
    """There is no window, and no timer is made."""
    hours.s.given("m", HOURS.close())
    assert (hours.windows, hours.timers()) == (Hourly(), [])


CLOSING = Outgoing("close", 1, lambda _command: b"{}")
MEANS = Means({HOURS.close: CLOSING, LAST_HOUR.close: CLOSING}, {}, Limits(), lambda of: of)


def context(now: datetime) -> Context:
    """A context as the image hands it to a handler, for what the time of a scenario cannot show."""
    made = Context(0, MEANS)
    made._enter_record((now - NOON) // MS, milliseconds(now))
    return made


def milliseconds(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // MS


def test_after_a_long_stop_all_windows_come_out_at_once():
    """Much too late everything that is over is taken, oldest first, with what it had in time; no timer is left."""
    windows = Hourly()
    for number in (0, 1, 3):
        windows.add("n", context(NOON + number * HOUR), close=HOURS.close())
    timer, late = windows.timer, context(NOON + 100 * HOUR)
    taken = windows.take_closed(late, close=HOURS.close())

    assert [(window.start, window.end, window.counts) for window in taken] == [hour(n, n=1) for n in (0, 1, 3)]
    assert (windows.panes, windows.due, late._scheduled, late._cancelled) == ({}, None, [], [timer])


def test_a_closing_that_was_lost_is_tried_again():
    """If the closing command was quarantined, the next count schedules it once more, and the counts are still right."""
    windows, close = LastHour(), LAST_HOUR.close()
    windows.add("n", context(NOON), close=close)
    due, timer = windows.due, windows.timer
    late = context(NOON + 45 * MINUTE)
    assert windows.add("n", late, close=close)

    assert [(scheduled.name, scheduled.due) for scheduled in late._scheduled] == [("close", milliseconds(due))]
    assert (windows.due, late._cancelled) == (due, [timer])
    taken = windows.take_closed(context(NOON + 45 * MINUTE), close=close)
    assert [(window.end - NOON, window.counts) for window in taken] == [(20 * MINUTE, {"n": 1})]


@pytest.mark.parametrize("kind", [Hourly, LastHour])
def test_more_lateness_opens_nothing_again(kind):
    """When the code allows more lateness than it did, a window that was handed out still takes no counts, and a timer
    from before closes nothing too early."""

    @dataclass(slots=True, kw_only=True)
    class Patient(kind, size=kind._sizes.size, slide=kind._sizes.slide, lateness=5 * HOUR):
        """The same windows."""

    windows, close, at = kind(), HOURS.close(), context(NOON + HOUR + 10 * MINUTE)
    windows.add("n", context(NOON), close=close)
    windows.take_closed(at, close=close)
    windows.add("n", at, close=close)
    state = {name: getattr(windows, name) for name in ("panes", "too_late", "closed", "due", "timer")}
    patient = Patient(**state)
    open_before = patient.open()

    assert not patient.add("n", at, at=NOON, close=close)
    assert (patient.open(), patient.too_late) == (open_before, {"n": 1})
    assert patient.take_closed(context(windows.due), close=close) == []
    assert patient.due == windows.due + 5 * HOUR - 10 * MINUTE


def test_a_closed_window_can_be_kept(hours):
    """A window is a part: it can be stored in an entity, and stays as it was."""
    hours.count()
    hours.s.pass_time(2 * HOUR)
    assert hours.s.state("m", HOURS.meter).kept == [Window(start=NOON, end=NOON + HOUR, counts={"n": 1})]
    hours.s.check()


# Sliding


def test_a_moment_is_in_every_window_that_slides_over_it(sliding):
    """What is added once is in size / slide windows, and is kept once."""
    sliding.count(amount=7)
    ends = [NOON + number * 20 * MINUTE for number in (1, 2, 3)]

    assert sliding.open() == [(end - HOUR, end, {"n": 7}) for end in ends]
    assert sliding.windows.panes == {NOON: {"n": 7}}


def test_sliding_windows_close_one_after_the_other(sliding):
    """Each closes at its own end and lateness, until the last that holds a count is over."""
    sliding.count()
    sliding.s.pass_time(25 * MINUTE)
    sliding.count()
    seen = []
    for _ in range(6):
        sliding.s.pass_time(20 * MINUTE)
        seen.append([counts["n"] for *_, counts in sliding.closed()])

    assert seen == [[1], [1, 2], [1, 2, 2], [1, 2, 2, 1], [1, 2, 2, 1], [1, 2, 2, 1]]
    assert [end - NOON for _, end, _ in sliding.closed()] == [n * 20 * MINUTE for n in (1, 2, 3, 4)]
    assert (sliding.windows.panes, sliding.timers()) == ({}, [])


def test_a_late_one_is_in_all_of_its_windows_or_in_none(sliding):
    """As soon as the first window that holds a moment is closed, the moment is too late for the others as well."""
    sliding.s.pass_time(30 * MINUTE - MS)
    in_time = sliding.count(NOON)
    sliding.s.pass_time(MS)
    too_late = sliding.count(NOON)
    sliding.s.pass_time(2 * HOUR)

    assert (in_time, too_late) == (True, False)
    assert [counts for *_, counts in sliding.closed()] == [{"n": 1}] * 3
    assert sliding.windows.too_late == {"n": 1}


def test_the_last_hour_can_be_read(sliding):
    """The window that ends with the moment's pane is the last hour, as far as panes are exact."""
    for minutes in (0, 20, 40, 60, 80):
        sliding.s.at(NOON + minutes * MINUTE)
        sliding.count()
    windows = sliding.windows
    asked = [windows.window(NOON + minutes * MINUTE) for minutes in (59, 60, 79, 80, 100, 120, 140)]

    assert [None if w is None else (w.end - NOON, w.count("n")) for w in asked] == [
        None,  # closed at 70 minutes
        (80 * MINUTE, 3),
        (80 * MINUTE, 3),
        (100 * MINUTE, 3),
        (120 * MINUTE, 2),
        (140 * MINUTE, 1),
        (160 * MINUTE, 0),
    ]


def test_a_closed_window_is_not_read_half(hours, sliding):
    """Of a window that is closed the panes may be gone, so there is no answer rather than a wrong one."""
    for telling in (hours, sliding):
        telling.count()
        telling.s.pass_time(HOUR + 15 * MINUTE)
        telling.count()

    assert hours.windows.window(NOON) is None
    assert hours.windows.window(NOON + HOUR) == Window(start=NOON + HOUR, end=NOON + 2 * HOUR, counts={"n": 1})
    assert sliding.windows.window(NOON + 59 * MINUTE) is None
    assert sliding.windows.window(NOON + 60 * MINUTE).counts == {"n": 1}


# Mistakes


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"size": timedelta()}, "size 0:00:00: the size must be more than nothing"),
        ({"size": -HOUR}, "the size must be more than nothing"),
        ({"size": HOUR, "slide": 7 * MINUTE}, "slide by 0:07:00, which does not divide it: take a slide that does"),
        ({"size": HOUR, "slide": timedelta()}, "which does not divide it"),
        ({"size": HOUR, "slide": -MINUTE}, "which does not divide it"),
        ({"size": HOUR, "slide": 2 * HOUR}, "which does not divide it"),
        ({"size": HOUR, "lateness": -MINUTE}, "it cannot be less than nothing"),
        ({"size": timedelta(days=40_000)}, "at most 36500 days"),
        ({"size": HOUR, "lateness": timedelta.max}, "at most 36500 days"),
        ({}, r"need a size: write class Wrong\(Windows, size=timedelta\(hours=1\)\)"),
        ({"lateness": MINUTE}, "need a size"),
        ({"slide": MINUTE}, "need a size"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(sizes, message):
    """The class statement fails at once, and says what to write."""
    with pytest.raises(Misuse, match=message):

        class Wrong(Windows, **sizes):
            """Never made."""


def test_a_subclass_of_a_subclass_has_its_size_or_says_its_own():
    """All is inherited, or all is said anew: a lateness alone would hide the size it is for."""

    @dataclass(slots=True, kw_only=True)
    class AlsoHourly(Hourly):
        """The same."""

    windows = AlsoHourly()
    windows.add("n", context(NOON), close=HOURS.close())
    assert [(window.start, window.end) for window in windows.open()] == [(NOON, NOON + HOUR)]
    with pytest.raises(Misuse, match="need a size"):

        class Wrong(Hourly, lateness=MINUTE):
            """Never made."""


def test_windows_without_a_size_cannot_be_used():
    """Who forgets the subclass is told, at the first use."""
    telling = Telling(metered(Windows))
    telling.s.when("m", telling.metered.count()).quarantined(Misuse)
    with pytest.raises(Misuse, match="need a size"):
        Windows().open()


def test_a_time_without_a_zone_is_refused(hours):
    """It could be any of 38 hours, so nothing is counted."""
    hours.count()
    windows = hours.windows
    for use in (
        lambda: windows.add("n", context(NOON), at=datetime(2024, 1, 1, 12), close=HOURS.close()),  # noqa: DTZ001
        lambda: windows.window(datetime(2024, 1, 1, 12)),  # noqa: DTZ001
    ):
        with pytest.raises(Misuse, match=r"2024-01-01 12:00:00 has no time zone: .*AwareDatetime"):
            use()
    assert windows == hours.windows


def test_a_window_beyond_the_calendar_cannot_be_read():
    """It has no end that could be told."""
    with pytest.raises(Misuse, match="end of the calendar"):
        Hourly().window(datetime.max.replace(tzinfo=UTC))


# Any history

# In minutes: size, slide, lateness.
SIZES = [(60, 60, 10), (60, 60, 0), (60, 60, 150), (60, 20, 10), (60, 20, 0), (60, 5, 35), (30, 10, 100)]


def _kind(size: int, slide: int, lateness: int) -> type[Windows]:
    @dataclass(slots=True, kw_only=True)
    class Kind(Windows, size=size * MINUTE, slide=slide * MINUTE, lateness=lateness * MINUTE):
        """As drawn."""

    return Kind


KINDS = {sizes: metered(_kind(*sizes)) for sizes in SIZES}

# How many minutes pass, then what is counted how many minutes ago; multiples of five meet the borders of windows.
ages = st.none() | st.integers(-100, 250) | st.integers(-5, 50).map(lambda fives: fives * 5)
steps = st.tuples(
    st.just(0) | st.integers(0, 60) | st.integers(0, 40).map(lambda fives: fives * 5),
    st.sampled_from(["n", "m"]),
    st.integers(-2, 5),
    ages,
    st.sampled_from([False, False, False, True]),
)


def recomputed(told, now, sizes):
    """What should be closed, open and too late, from a list of (record time, time, counter, amount), in minutes, by
    going over every window there could be. Knows nothing of panes."""
    size, slide, lateness = sizes
    too_late, in_time = Counter(), []
    for recorded, at, counter, amount in told:
        moment = min(recorded if at is None else at, recorded)
        first_end = moment + 1
        while first_end % slide:
            first_end += 1
        if first_end + lateness <= recorded:
            too_late[counter] += amount
        else:
            in_time.append((moment, counter, amount))
    closed, still_open = [], []
    for end in range(-600, now + size + slide, slide):  # -600 is a multiple of every slide
        within = [(counter, amount) for moment, counter, amount in in_time if end - size <= moment < end]
        counts = Counter()
        for counter, amount in within:
            counts[counter] += amount
        if within:
            here = closed if end + lateness <= now else still_open
            here.append((end - size, end, {counter: n for counter, n in counts.items() if n}))
    return closed, still_open, dict(too_late)


def since_noon(windows):
    return [((start - NOON) // MINUTE, (end - NOON) // MINUTE, counts) for start, end, counts in windows]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(SIZES), st.lists(steps, max_size=25))
def test_windows_are_what_a_plain_recomputation_gives(sizes, history):
    """After any history with late, early, refused and disordered counts: what was closed, what is open and what was
    too late are exactly what one gets by going through the commands; and one timer waits at most."""
    size, slide, lateness = sizes
    telling, told, now = Telling(KINDS[sizes]), [], 0
    for minutes, counter, amount, ago, refuse in history:
        now += minutes
        telling.s.at(NOON + now * MINUTE)
        at = None if ago is None else now - ago
        command = telling.metered.count(
            counter=counter, amount=amount, at=None if at is None else NOON + at * MINUTE, refuse=refuse
        )
        then = telling.s.when("m", command)
        if refuse:
            then.rejected("refused")
            continue
        told.append((now, at, counter, amount))
        closed, still_open, too_late = recomputed(told, now, sizes)
        assert since_noon(telling.closed()) == closed
        assert since_noon(telling.open()) == still_open
        windows = telling.windows
        assert windows.too_late == too_late
        assert len(windows.panes) <= (size + lateness) // slide + 1
        assert len(telling.timers()) == bool(windows.panes)
        for start, end, counts in telling.open():
            assert windows.window(end - MS) == Window(start=start, end=end, counts=counts)
    telling.s.pass_time((size + lateness) * MINUTE)
    closed, still_open, _ = recomputed(told, now + size + lateness, sizes)
    assert (since_noon(telling.closed()), since_noon(telling.open()) if told else []) == (closed, still_open)
    assert all(one < other for one, other in pairwise(end for _, end, _ in telling.closed()))
    telling.s.check()
