"""The social network's rules, and what holds of it after any history."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from engram import Rejected
from engram.testing import commands, scenario
from hypothesis import given, settings
from hypothesis import strategies as st

from sample_apps.social import app
from sample_apps.social.commands import (
    Deliver,
    Discard,
    Follow,
    GainFollower,
    GainLike,
    Like,
    Publish,
    PublishLater,
    Register,
    Unfollow,
)
from sample_apps.social.events import Followed, Notified, Published
from sample_apps.social.queries import Celebrities, Drafts, Followers, Following, Posts, Profile, ProfileCard, Timeline
from sample_apps.social.rules import AllowWord, BannedWords, BanWord, SetCelebrityFrom
from sample_apps.social.user import TIMELINE_LENGTH, User

NEW_YEAR = datetime(2024, 1, 1, tzinfo=UTC)


@pytest.fixture
def s():
    """Ada, Bob and Cleo are there, and nobody follows anybody."""
    s = scenario(app, start=NEW_YEAR)
    for key in ("ada", "bob", "cleo"):
        s.given(key, Register(name=key.capitalize()))
    return s


# Users


def test_who_registers_is_a_user():
    """Registering makes a user, with a name and a date."""
    s = scenario(app, start=NEW_YEAR)
    s.when("ada", Register(name="Ada")).replies(None).sends_nothing().emits()
    assert s.state("ada", User) == User(key="ada", name="Ada", since=NEW_YEAR)


def test_a_key_is_taken_once(s):
    """Nobody registers under a key that is taken, and the user stays who they were."""
    s.when("ada", Register(name="Impostor")).rejected("already_registered")
    assert s.state("ada", User).name == "Ada"


@pytest.mark.parametrize("command", [Follow(whom="ada"), Publish(text="hi"), Like(author="ada", post="p")])
def test_only_users_do_things(s, command):
    """Who is not registered can neither follow, publish nor like, and does not come into being by trying."""
    s.when("nobody", command).rejected("unknown_user")
    assert "nobody" not in s.entities(User)


def test_a_profile_is_in_numbers(s):
    """A profile counts whom one follows, who follows, posts, and likes."""
    s.given("bob", Follow(whom="ada"))
    s.given("ada", Follow(whom="cleo"))
    post = s.given("ada", Publish(text="hello"))
    s.given("bob", Like(author="ada", post=post))
    s.given("cleo", Like(author="ada", post=post))
    assert s.ask("ada", Profile()) == ProfileCard(
        key="ada", name="Ada", since=NEW_YEAR, following=1, followers=1, posts=1, likes=2
    )


def test_who_never_registered_has_no_profile(s):
    """A profile of nobody is refused, even if somebody follows them."""
    s.given("ada", Follow(whom="nobody"))
    with pytest.raises(Rejected, match="unknown_user"):
        s.ask("nobody", Profile())


# Following


def test_following_is_known_to_both(s):
    """Who follows and who is followed both know, and the outside is told."""
    then = s.when("ada", Follow(whom="bob"))
    then.replies(None).sends("bob", GainFollower(by="ada")).emits(Followed(who="ada", whom="bob"))
    assert s.ask("ada", Following()) == ["bob"]
    assert s.ask("bob", Followers()) == ["ada"]
    assert s.state("ada", User).following == {"bob": NEW_YEAR}


def test_nobody_follows_themselves(s):
    """Following oneself is refused."""
    s.when("ada", Follow(whom="ada")).rejected("self_follow").sends_nothing().emits()


def test_following_twice_is_refused(s):
    """Who follows already does not follow again, and keeps the date it began."""
    s.given("ada", Follow(whom="bob"))
    s.pass_time(timedelta(days=1)).when("ada", Follow(whom="bob")).rejected("already_following")
    assert s.state("ada", User).following == {"bob": NEW_YEAR}


def test_unfollowing_is_known_to_both_and_clears_the_timeline(s):
    """Who unfollows sees no more of the other, also not what was there; the other loses a follower."""
    s.given("ada", Follow(whom="bob"))
    s.given("ada", Follow(whom="cleo"))
    s.given("bob", Publish(text="from bob"))
    s.given("cleo", Publish(text="from cleo"))
    s.when("ada", Unfollow(whom="bob")).replies(None)
    assert [entry.author for entry in s.ask("ada", Timeline())] == ["cleo"]
    assert s.ask("ada", Following()) == ["cleo"]
    assert s.ask("bob", Followers()) == []
    s.given("bob", Publish(text="once more"))
    assert len(s.ask("ada", Timeline())) == 1


def test_unfollowing_a_stranger_is_refused(s):
    """One can only unfollow whom one follows."""
    s.when("ada", Unfollow(whom="bob")).rejected("not_following")


# Posts


def test_a_post_reaches_the_timelines_of_followers(s):
    """A post is in the author's posts and in every follower's timeline, and the outside is told."""
    s.given("bob", Follow(whom="ada"))
    s.given("cleo", Follow(whom="ada"))
    then = s.when("ada", Publish(text="hello"))
    then.emits(Published(author="ada", post=then.reply))
    assert [key for key, _ in then.sent] == ["bob", "cleo"]
    for reader in ("bob", "cleo"):
        assert [(entry.post, entry.text, entry.at) for entry in s.ask(reader, Timeline())] == [
            (then.reply, "hello", NEW_YEAR)
        ]
    assert [(view.post, view.text) for view in s.ask("ada", Posts())] == [(then.reply, "hello")]
    assert s.ask("ada", Timeline()) == []


def test_the_newest_posts_come_first(s):
    """Posts and timelines are read from the newest on, up to a limit."""
    s.given("bob", Follow(whom="ada"))
    for number in range(5):
        s.pass_time(timedelta(hours=1)).given("ada", Publish(text=str(number)))
    assert [view.text for view in s.ask("ada", Posts(limit=2))] == ["4", "3"]
    assert [view.text for view in s.ask("bob", Timeline(limit=3))] == ["4", "3", "2"]


def test_a_timeline_keeps_its_newest_entries(s):
    """A timeline forgets its oldest entries beyond its length."""
    s.given("bob", Follow(whom="ada"))
    for number in range(TIMELINE_LENGTH + 2):
        s.given("bob", Deliver(author="ada", post=str(number), text="text", at=NEW_YEAR))
    assert [entry.post for entry in s.state("bob", User).timeline] == [
        str(number) for number in range(2, TIMELINE_LENGTH + 2)
    ]


def test_a_post_of_somebody_unfollowed_meanwhile_is_not_delivered(s):
    """A post that arrives after its reader has unfollowed the author is dropped."""
    s.when("bob", Deliver(author="ada", post="p", text="late", at=NEW_YEAR)).replies(None)
    assert s.ask("bob", Timeline()) == []


# Likes


def test_a_like_is_counted_once(s):
    """A post has one like of each who likes it; liking again is refused."""
    post = s.given("ada", Publish(text="hello"))
    s.when("bob", Like(author="ada", post=post)).replies(None).sends("ada", GainLike(post=post, by="bob"))
    s.when("bob", Like(author="ada", post=post)).rejected("already_liked")
    assert [view.likes for view in s.ask("ada", Posts())] == [1]


def test_a_like_of_no_post_is_no_like(s):
    """The author refuses a like for a post that is not there."""
    s.given("bob", Like(author="ada", post="none"))
    s.when("ada", GainLike(post="none", by="bob")).rejected("unknown_post")
    assert s.ask("ada", Profile()).likes == 0


# After any history

deeds = commands(app, Register, Follow, Unfollow, Publish, Like, keys=["ada", "bob", "cleo", "dee"])


@settings(max_examples=50, deadline=None)
@given(st.lists(deeds, max_size=25), st.sampled_from([1, 2, 8]))
def test_following_and_followers_agree(history, partitions):
    """After any history a follows b exactly if b has the follower a, and timelines hold only those one follows."""
    s = scenario(app, partitions=partitions)
    for key in ("ada", "bob", "cleo"):
        s.given(key, Register(name=key))
    for key, command in history:
        s.when(key, command).handled()
    users = s.entities(User)
    following = {(key, whom) for key, user in users.items() for whom in user.following}
    followed = {(by, key) for key, user in users.items() for by in user.followers}
    assert following == followed
    assert all(entry.author in user.following for user in users.values() for entry in user.timeline)
    s.check()


@settings(max_examples=25, deadline=None)
@given(st.lists(commands(app), max_size=20))
def test_no_command_fails(history):
    """Whatever is sent, also what only users' commands send, is replied to or rejected, never quarantined."""
    s = scenario(app)
    for key, command in history:
        s.when(key, command).handled()
    s.check()


# Posts for later


def test_a_post_for_later_is_published_at_its_time(s):
    """It waits among the drafts, then it is a post, and followers have it."""
    s.given("bob", Follow(whom="ada"))
    noon = s.now + timedelta(hours=12)
    post = s.given("ada", PublishLater(text="Lunch!", at=noon))
    s.pass_time(timedelta(hours=11))
    waiting = s.ask("ada", Drafts()), s.ask("ada", Posts())
    s.pass_time(timedelta(hours=2))

    assert ([draft.post for draft in waiting[0]], waiting[1]) == ([post], [])
    assert [(p.post, p.at) for p in s.ask("ada", Posts())] == [(post, noon)]
    assert [(e.author, e.at) for e in s.ask("bob", Timeline())] == [("ada", noon)]
    assert s.ask("ada", Drafts()) == []


def test_a_discarded_draft_is_never_published(s):
    """Discarded is gone, and cannot be discarded again."""
    post = s.given("ada", PublishLater(text="Oops", at=s.now + timedelta(hours=1)))
    s.given("ada", Discard(post=post))
    s.pass_time(timedelta(days=1))

    assert s.ask("ada", Posts()) == []
    s.when("ada", Discard(post=post)).rejected("unknown_draft")


def test_a_post_for_the_past_is_refused(s):
    """The refusal says what to do instead."""
    s.when("ada", PublishLater(text="Late", at=s.now)).rejected("in_the_past")


# Rules


def test_a_banned_word_is_banned_for_everybody(s):
    """From the broadcast on, whoever publishes it is refused, in whichever partition; others are as before."""
    s.given("ada", Publish(text="Rubbish!"))
    s.broadcast(BanWord(word="rubbish"))

    for key in ("ada", "bob", "cleo"):
        s.when(key, Publish(text="What RUBBISH is this")).rejected("banned_word")
        s.given(key, Publish(text="rubbishy"))
    assert s.ask("*", BannedWords()) == ["rubbish"]


def test_a_word_is_allowed_again(s):
    """And one that was never banned cannot be."""
    s.broadcast(BanWord(word="Tea"))
    s.broadcast(AllowWord(word="tea"))
    s.broadcast(AllowWord(word="tea")).rejected("not_banned")
    s.given("ada", Publish(text="tea"))


def test_a_draft_with_a_word_that_was_banned_meanwhile_stays_a_draft(s):
    """Its timer is refused like anybody; the author can discard it."""
    s.given("ada", PublishLater(text="tea", at=NEW_YEAR + timedelta(hours=1)))
    s.broadcast(BanWord(word="tea"))
    s.pass_time(timedelta(hours=2))

    assert s.ask("ada", Posts()) == []
    (draft,) = s.ask("ada", Drafts())
    s.given("ada", Discard(post=draft.post))


# Celebrities


def test_posts_of_celebrities_are_not_delivered(s):
    """Who has enough followers tells them once, and sends no posts from then on; others deliver as before."""
    s.broadcast(SetCelebrityFrom(followers=2))
    for fan in ("bob", "cleo"):
        s.given(fan, Follow(whom="ada"))
    s.given("ada", Follow(whom="bob"))
    s.given("ada", Publish(text="to whom it may concern"))
    s.given("bob", Publish(text="for my only reader"))

    assert [entry.author for entry in s.ask("cleo", Timeline())] == []
    assert [entry.author for entry in s.ask("ada", Timeline())] == ["bob"]
    assert s.ask("cleo", Celebrities()) == s.ask("bob", Celebrities()) == ["ada"]
    s.when("ada", Publish(text="again")).sends_nothing()


def test_a_new_follower_of_a_celebrity_knows_it(s):
    """Also one who comes later; and nobody knows of celebrities whom they follow no more."""
    s.broadcast(SetCelebrityFrom(followers=1))
    s.given("bob", Follow(whom="ada"))
    s.given("ada", Publish(text="hello"))
    s.given("cleo", Follow(whom="ada"))
    assert s.ask("cleo", Celebrities()) == ["ada"]

    s.given("cleo", Unfollow(whom="ada"))
    assert s.ask("cleo", Celebrities()) == []


# Notifications


def test_followers_and_likes_are_told_to_the_outside(s):
    """Each once, to the one whom it concerns."""
    post = s.given("ada", Publish(text="hello"))
    s.given("bob", Follow(whom="ada"))
    s.given("bob", Like(author="ada", post=post))

    assert [event for event in s.events() if isinstance(event, Notified)] == [
        Notified(whom="ada", what="follower", by="bob"),
        Notified(whom="ada", what="like", by="bob", post=post),
    ]
