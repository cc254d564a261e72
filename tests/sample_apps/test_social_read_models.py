"""The social network's read models, in memory."""

from __future__ import annotations

from datetime import timedelta

import pytest
from engram import Ranked, Totals
from engram.testing import scenario
from engram.testing.scenario import Scenario

from sample_apps.social import app
from sample_apps.social.commands import Follow, Like, Publish, Register, Unfollow
from sample_apps.social.read_models import (
    EVERYBODY,
    Figures,
    FollowersOf,
    MostFollowed,
    PeopleSearch,
    PostFound,
    PostSearch,
    TrendingTags,
    hour,
)


def four_users(partitions: int) -> Scenario:
    s = scenario(app, partitions=partitions)
    for key in ("ada", "bob", "cleo", "dan"):
        s.given(key, Register(name=f"{key.title()} Example"))
    return s


@pytest.fixture
def s() -> Scenario:
    return four_users(partitions=8)


def test_followers_are_looked_up_by_whom_they_follow(s: Scenario):
    """Whoever follows is found at once, and no more after they stopped."""
    for key in ("dan", "ada", "cleo"):
        s.given(key, Follow(whom="bob"))
    assert s.look_up(FollowersOf, "bob") == ["ada", "cleo", "dan"]
    s.given("cleo", Unfollow(whom="bob"))

    assert s.look_up(FollowersOf, "bob") == ["ada", "dan"]
    assert s.look_up(FollowersOf, "nobody") == []
    s.check()


def test_the_most_followed_come_first(s: Scenario):
    """Ranked by followers, and by key among equals."""
    for key, whom in [("ada", "bob"), ("cleo", "bob"), ("bob", "ada"), ("ada", "cleo")]:
        s.given(key, Follow(whom=whom))

    assert s.top(MostFollowed, EVERYBODY) == [Ranked(2, "bob"), Ranked(1, "ada"), Ranked(1, "cleo")]
    assert s.top(MostFollowed, EVERYBODY, 1) == [Ranked(2, "bob")]


def test_tags_are_trending_for_an_hour_and_the_next(s: Scenario):
    """Tags of an hour are ranked by posts; two hours later nobody asks for them any more."""
    s.given("ada", Publish(text="I like #Python and #python"))
    s.given("bob", Publish(text="#python with #spark"))
    then = hour(s.now)
    assert s.top(TrendingTags, then) == [Ranked(2, "python"), Ranked(1, "spark")]
    s.pass_time(timedelta(hours=1))
    s.given("cleo", Publish(text="#spark"))
    assert s.top(TrendingTags, hour(s.now)) == [Ranked(1, "spark")]
    assert len(s.top(TrendingTags, then)) == 2
    s.pass_time(timedelta(hours=1))

    assert s.top(TrendingTags, then) == []


def test_posts_and_people_are_found_as_they_are_written():
    """By words in any case, by beginnings, all words; in one partition, the shorter text first."""
    s = four_users(partitions=1)
    first = s.given("ada", Publish(text="Event sourcing in memory"))
    second = s.given("bob", Publish(text="memory"))

    assert s.search(PostSearch, "MEMORY") == [
        PostFound(author="bob", post=second),
        PostFound(author="ada", post=first),
    ]
    assert s.search(PostSearch, "sourc* event") == [PostFound(author="ada", post=first)]
    assert s.search(PostSearch, "sourc") == []
    assert s.search(PeopleSearch, "cleo") == ["cleo"]
    assert sorted(s.search(PeopleSearch, "exam*")) == ["ada", "bob", "cleo", "dan"]


def test_figures_are_of_all_users(s: Scenario):
    """How many have posts, how many there are, and the busiest one's."""
    post = s.given("ada", Publish(text="one"))
    s.given("ada", Publish(text="two"))
    s.given("bob", Publish(text="three"))
    s.given("bob", Like(author="ada", post=post))

    assert s.tally(Figures, "posts") == Totals(2, 3, 1, 2)
    assert s.tally(Figures, "likes") == Totals(1, 1, 1, 1)
    assert s.tally(Figures, "nothing") == Totals(0, 0, None, None)
