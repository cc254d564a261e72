"""Hourly impressions and clicks of tweets: read while they are counted, told when the hour is over."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from engram.codec.codec import Codec, Commands
from engram.testing import commands, scenario
from hypothesis import given, settings
from hypothesis import strategies as st

from sample_apps.impressions import app
from sample_apps.impressions.commands import Click, CloseHours, Impression
from sample_apps.impressions.events import HourClosed
from sample_apps.impressions.queries import Hours, HourView, LastUrls, TooLate, TooLateView
from sample_apps.impressions.tweet import HOURS_KEPT, Hour, Tweet

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def s():
    """It is noon, and nobody has seen any tweet."""
    return scenario(app, start=NOON)


def test_an_hour_is_read_while_it_is_counted(s):
    """Early results: the hour is there after its first impression, marked open."""
    s.when("t", Impression()).replies(True).emits().sends_nothing()
    s.given("t", Impression(at=NOON))
    s.given("t", Click(url="https://example.org"))

    assert s.ask("t", Hours()) == [HourView(hour=NOON, impressions=2, clicks=1, open=True)]
    assert s.ask("unseen", Hours()) == []


def test_an_hour_is_told_once_when_it_is_over(s):
    """Ten minutes after its end the outside gets the counts, and the query says that they are final."""
    s.given("t", Impression())
    s.pass_time(HOUR + 10 * MINUTE)
    once = s.events()
    s.pass_time(timedelta(days=2))

    assert once == s.events() == [HourClosed(tweet="t", hour=NOON, impressions=1, clicks=0)]
    assert s.ask("t", Hours()) == [HourView(hour=NOON, impressions=1, clicks=0, open=False)]


def test_the_hour_before_may_still_be_open(s):
    """For ten minutes two hours are open, and what is late goes to the one in which it happened."""
    s.given("t", Impression())
    s.pass_time(HOUR + 9 * MINUTE)
    s.given("t", Impression())
    s.when("t", Click(url="u", at=NOON + 30 * MINUTE)).replies(True)

    assert s.ask("t", Hours()) == [
        HourView(hour=NOON + HOUR, impressions=1, clicks=0, open=True),
        HourView(hour=NOON, impressions=1, clicks=1, open=True),
    ]


def test_what_is_too_late_is_not_lost_from_sight(s):
    """The reply says that it was not counted, and so does a query."""
    s.given("t", Impression())
    s.pass_time(HOUR + 10 * MINUTE)
    s.when("t", Impression(at=NOON)).replies(False)
    s.when("t", Click(url="late", at=NOON)).replies(False)

    assert s.ask("t", TooLate()) == TooLateView(impressions=1, clicks=1)
    assert s.ask("t", Hours()) == [HourView(hour=NOON, impressions=1, clicks=0, open=False)]
    assert s.ask("t", LastUrls()) == []


def test_the_last_five_urls_are_kept(s):
    """Newest first, also if one is clicked again."""
    for url in "abcdefb":
        s.given("t", Click(url=url))

    assert s.ask("t", LastUrls()) == ["b", "f", "e", "d", "c"]


def test_the_newest_hours_come_first_and_the_oldest_are_forgotten(s):
    """A tweet keeps a limited past, and a reader asks for as much of it as wanted."""
    for _ in range(HOURS_KEPT + 3):
        s.given("t", Impression())
        s.pass_time(HOUR)
    newest = [view.hour for view in s.ask("t", Hours(limit=2))]

    assert newest == [s.now - HOUR, s.now - 2 * HOUR]
    assert [view.open for view in s.ask("t", Hours(limit=2))] == [True, False]
    assert len(s.state("t", Tweet).past) == HOURS_KEPT
    assert len(s.events()) == HOURS_KEPT + 2


def test_nobody_closes_an_hour_by_hand(s):
    """The timer's command, sent by a client, changes nothing."""
    s.given("t", Impression())
    before = s.state("t", Tweet)
    s.when("t", CloseHours()).replies(None).emits()

    assert s.state("t", Tweet) == before


# After any history

TWEETS = ["a", "b", "c"]
moments = st.none() | st.integers(-30, 180).map(lambda ago: ago * MINUTE)
moves = st.just(0 * MINUTE) | st.integers(0, 100).map(lambda minutes: minutes * MINUTE) | st.just(HOUR)
deeds = st.tuples(moves, st.sampled_from(TWEETS), st.booleans(), moments)


def from_the_log(s) -> tuple[dict[tuple[str, datetime], Counter[str]], Counter[tuple[str, str]]]:
    """Counts per tweet and hour, and what was too late per tweet, by going through all records once."""
    codec = Codec(app)
    hours: dict[tuple[str, datetime], Counter[str]] = {}
    late: Counter[tuple[str, str]] = Counter()
    for partition in range(s._log.partitions):
        for record in s._log.read(partition, 0, limit=10_000):
            content = codec.decode_record(record) if record.payload else None
            if not isinstance(content, Commands):
                continue
            now = datetime.fromtimestamp(record.time / 1000, UTC)
            for command, tweet in zip(content.commands, content.header.keys, strict=True):
                happened = now if command.at is None or command.at > now else command.at
                hour = happened.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
                what = "clicks" if isinstance(command, Click) else "impressions"
                if now < hour + HOUR + 10 * MINUTE:
                    hours.setdefault((tweet, hour), Counter())[what] += 1
                else:
                    late[tweet, what] += 1
    return hours, late


@settings(max_examples=100, deadline=None)
@given(st.lists(deeds, max_size=30), st.sampled_from([1, 2, 8]))
def test_hourly_counts_are_what_the_log_says(history, partitions):
    """Events of closed hours, open hours and what was too late are exactly what a plain recomputation from the log
    gives, with late and out-of-order records; and a replay comes to the same."""
    s = scenario(app, partitions=partitions, start=NOON)
    for move, tweet, click, ago in history:
        s.pass_time(move)
        at = None if ago is None else s.now - ago
        s.when(tweet, Click(url="u", at=at) if click else Impression(at=at)).handled()
    hours, late = from_the_log(s)
    expected = {place: (counts["impressions"], counts["clicks"]) for place, counts in hours.items()}
    over = {place: counts for place, counts in expected.items() if place[1] + HOUR + 10 * MINUTE <= s.now}

    events = s.events()
    assert len(events) == len(over)
    assert {(event.tweet, event.hour): (event.impressions, event.clicks) for event in events} == over
    seen = {
        (tweet, view.hour): (view.impressions, view.clicks, view.open)
        for tweet in TWEETS
        for view in s.ask(tweet, Hours(limit=HOURS_KEPT))
    }
    assert seen == {place: (*counts, place not in over) for place, counts in expected.items()}
    for tweet in TWEETS:
        too_late = s.ask(tweet, TooLate())
        assert (too_late.impressions, too_late.clicks) == (late[tweet, "impressions"], late[tweet, "clicks"])
    s.check()


@settings(max_examples=25, deadline=None)
@given(st.lists(commands(app), max_size=20))
def test_no_command_fails(history):
    """Whatever is sent, at whatever time it is said to have happened, is replied to, and never quarantined."""
    s = scenario(app)
    for key, command in history:
        s.when(key, command).handled()
    s.check()


def test_the_past_of_a_tweet_is_final(s):
    """An hour of the past does not change with what becomes known later."""
    s.given("t", Click(url="u"))
    s.pass_time(2 * HOUR)
    s.given("t", Click(url="u", at=NOON))
    s.given("t", Impression(at=NOON + HOUR))

    assert s.state("t", Tweet).past == [Hour(start=NOON, impressions=0, clicks=1)]
