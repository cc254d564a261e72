"""The social network live: what users see without asking again."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from engram import Client, Ranked
from engram.testing import scenario

from sample_apps.social import app
from sample_apps.social.commands import Admit, Follow, GainFollower, Like, Protect, Publish, Register, Unfollow
from sample_apps.social.queries import Notifications, Timeline
from sample_apps.social.read_models import (
    EVERYBODY,
    FollowersOf,
    MostFollowed,
    PostFound,
    PostSearch,
    TrendingTags,
    hour,
)
from sample_apps.social.user import NOTICES_KEPT
from tests.serving.running import SECONDS, RunningApp


def test_notifications_are_told_as_they_come(social: RunningApp):
    """A follower, then a like of a post: who watches hears of each at once, the newest first."""

    async def story(client: Client) -> None:
        for key in ("live-ada", "live-bob"):
            await client.send(key, Register(name=key))
        post = await client.send("live-ada", Publish(text="hello"))
        notices = client.watch("live-ada", Notifications())
        assert await anext(notices) == []
        await client.send("live-bob", Follow(whom="live-ada"))
        assert [(notice.what, notice.by) for notice in await anext(notices)] == [("follower", "live-bob")]
        await client.send("live-bob", Like(author="live-ada", post=post))
        newest, *older = await anext(notices)
        assert (newest.what, newest.by, newest.post, len(older)) == ("like", "live-bob", post, 1)

    _live(social, story)


def test_what_is_read_of_many_is_told_as_it_changes(social: RunningApp):
    """Followers of a user, trending tags, what is found by a word, and a home timeline."""

    async def story(client: Client) -> None:
        for key in ("live-cleo", "live-dan"):
            await client.send(key, Register(name=key))
        followers, board = client.watch(FollowersOf, "live-cleo"), hour(datetime.now(UTC))
        tags, found = client.watch(TrendingTags, board, limit=1000), client.watch(PostSearch, "liveword")
        home = client.watch("live-dan", Timeline())
        assert [await anext(stream) for stream in (followers, found, home)] == [[], [], []]
        before = await anext(tags)
        await client.send("live-dan", Follow(whom="live-cleo"), wait="effects")
        assert await anext(followers) == ["live-dan"]
        post = await client.send("live-cleo", Publish(text="a liveword about #livetag"))
        assert await anext(found) == [PostFound(author="live-cleo", post=post)]
        assert [entry.post for entry in await anext(home)] == [post]
        if hour(datetime.now(UTC)) == board:  # not at the very end of an hour
            assert Ranked(1, "livetag") not in before
            assert Ranked(1, "livetag") in await anext(tags)
        await client.send("live-dan", Unfollow(whom="live-cleo"))
        assert await anext(followers) == []

    _live(social, story)


def test_the_most_followed_are_a_live_board(social: RunningApp):
    """Who gains a follower moves up while others look."""

    async def story(client: Client) -> None:
        names = [f"live-fan{number}" for number in range(6)]
        for key in (*names, "live-star"):
            await client.send(key, Register(name=key))
        board = client.watch(MostFollowed, EVERYBODY, limit=100)
        await anext(board)
        for name in names:
            await client.send(name, Follow(whom="live-star"))
        async with asyncio.timeout(SECONDS):
            scores: list[float] = []
            while not scores or scores[-1] < len(names):
                scores += [ranked.score for ranked in await anext(board) if ranked.row == "live-star"]
        assert scores == sorted(scores)

    _live(social, story)


def test_notices_are_kept_up_to_a_bound():
    """The newest stay; a protected account hears of a follower when it has admitted them."""
    s = scenario(app)
    s.given("ada", Register(name="Ada"))
    for number in range(NOTICES_KEPT + 5):
        s.given("ada", GainFollower(by=f"fan{number}"))
    s.given("ada", Protect())
    s.given("ada", GainFollower(by="late"))
    assert s.ask("ada", Notifications(limit=200))[0].by == f"fan{NOTICES_KEPT + 4}"
    s.given("ada", Admit(whom="late"))
    notices = s.ask("ada", Notifications(limit=200))

    assert (len(notices), notices[0].by, notices[-1].by) == (NOTICES_KEPT, "late", "fan6")


def _live(social: RunningApp, story) -> None:
    async def talk() -> None:
        async with social.client() as client, asyncio.timeout(3 * SECONDS):
            await story(client)

    asyncio.run(talk())
