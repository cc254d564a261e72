"""What users do. Each command changes one user and reaches others only by sending.

Users act for themselves (`allow.owner`); what entities and timers send is for no client (`allow.nobody`).
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from engram import Command, Context, Rejected, allow
from pydantic import AwareDatetime, Field

from sample_apps.social.events import Followed, Notified, Published
from sample_apps.social.rules import Rules, words_of
from sample_apps.social.tag import UseTag, tags_of
from sample_apps.social.user import NOTICES_KEPT, TIMELINE_LENGTH, Draft, Notice, Post, TimelineEntry, User

Name = Annotated[str, Field(min_length=1, max_length=80)]
Key = Annotated[str, Field(min_length=1, max_length=200)]
Text = Annotated[str, Field(min_length=1, max_length=500)]


def _registered(user: User) -> None:
    if not user.registered:
        raise Rejected("unknown_user", f"There is no user {user.key}.")


class Register(Command[User, None], name="register", authorize=allow.owner):
    """Become a user."""

    name: Name

    def handle(self, user: User, ctx: Context) -> None:
        if user.registered:
            raise Rejected("already_registered", f"{user.key} is taken.")
        user.name = self.name
        user.since = ctx.now


class Follow(Command[User, None], name="follow", authorize=allow.owner):
    """See what somebody publishes from now on."""

    whom: Key

    def handle(self, user: User, ctx: Context) -> None:
        _registered(user)
        if self.whom == user.key:
            raise Rejected("self_follow", "You cannot follow yourself.")
        if self.whom in user.following:
            raise Rejected("already_following", f"You follow {self.whom} already.")
        user.following[self.whom] = ctx.now
        ctx.send(self.whom, GainFollower(by=user.key))
        ctx.emit(Followed(who=user.key, whom=self.whom))


class Protect(Command[User, None], name="protect", authorize=allow.owner):
    """From now on only followers read, and who wants to be one must be admitted; or everybody may again."""

    protected: bool = True

    def handle(self, user: User, ctx: Context) -> None:
        _registered(user)
        user.protected = self.protected


class Admit(Command[User, None], name="admit", authorize=allow.owner):
    """Let somebody follow who has asked for it."""

    whom: Key

    def handle(self, user: User, ctx: Context) -> None:
        if self.whom not in user.asking:
            raise Rejected("not_asking", f"{self.whom} does not ask to follow you.")
        del user.asking[self.whom]
        _gain_follower(user, self.whom, ctx)


class Unfollow(Command[User, None], name="unfollow", authorize=allow.owner):
    """See no more of somebody."""

    whom: Key

    def handle(self, user: User, ctx: Context) -> None:
        if self.whom not in user.following:
            raise Rejected("not_following", f"You do not follow {self.whom}.")
        del user.following[self.whom]
        user.celebrities.pop(self.whom, None)
        user.timeline = [entry for entry in user.timeline if entry.author != self.whom]
        ctx.send(self.whom, LoseFollower(by=user.key))


class Publish(Command[User, str], name="publish", authorize=allow.owner):
    """Write a post; the reply is its id. It goes to the timelines of all followers, unless they are very many."""

    text: Text

    def handle(self, user: User, ctx: Context) -> str:
        _registered(user)
        _allowed(self.text, ctx)
        post = ctx.new_id()
        _publish(user, post, self.text, ctx)
        return post


def _allowed(text: str, ctx: Context) -> None:
    banned = ctx.shared(Rules).banned
    found = [word for word in words_of(text) if word in banned]
    if found:
        raise Rejected("banned_word", f"Not with the word {found[0]}.")


def _publish(user: User, post: str, text: str, ctx: Context) -> None:
    user.posts[post] = Post(text=text, at=ctx.now)
    ctx.emit(Published(author=user.key, post=post))
    for tag in [] if user.protected else tags_of(text):
        ctx.send(tag, UseTag())
    if not user.celebrity and len(user.followers) < ctx.shared(Rules).celebrity_from:
        for follower in user.followers:
            ctx.send(follower, Deliver(author=user.key, post=post, text=text, at=ctx.now))
    elif not user.celebrity:
        user.celebrity = True
        for follower in user.followers:
            ctx.send(follower, KnowCelebrity(author=user.key))


class PublishLater(Command[User, str], name="publish_later", authorize=allow.owner):
    """Write a post that is published at a time; the reply is its id."""

    text: Text
    at: AwareDatetime

    def handle(self, user: User, ctx: Context) -> str:
        _registered(user)
        if self.at <= ctx.now:
            raise Rejected("in_the_past", f"{self.at} is over: publish it now.")
        _allowed(self.text, ctx)
        post = ctx.new_id()
        timer = ctx.schedule(self.at, PublishDraft(post=post))
        user.drafts[post] = Draft(text=self.text, at=self.at, timer=timer)
        return post


class Discard(Command[User, None], name="discard", authorize=allow.owner):
    """Take a post back that is not published yet."""

    post: Key

    def handle(self, user: User, ctx: Context) -> None:
        if self.post not in user.drafts:
            raise Rejected("unknown_draft", f"No post {self.post} waits to be published.")
        ctx.cancel(user.drafts.pop(self.post).timer)


class PublishDraft(Command[User, None], name="publish_draft", authorize=allow.nobody):
    """The time of a draft has come."""

    post: Key

    def handle(self, user: User, ctx: Context) -> None:
        draft = user.drafts.pop(self.post, None)
        if draft is None:
            raise Rejected("unknown_draft", f"No post {self.post} waits to be published.")
        _allowed(draft.text, ctx)  # a word may have been banned since: then it stays a draft
        _publish(user, self.post, draft.text, ctx)


class Like(Command[User, None], name="like", authorize=allow.owner):
    """Like a post of somebody."""

    author: Key
    post: Key

    def handle(self, user: User, ctx: Context) -> None:
        _registered(user)
        if self.post in user.liked:
            raise Rejected("already_liked", "You like this post already.")
        user.liked[self.post] = None
        ctx.send(self.author, GainLike(post=self.post, by=user.key))


class GainFollower(Command[User, None], name="gain_follower", authorize=allow.nobody):
    """Somebody follows this user."""

    by: Key

    def handle(self, user: User, ctx: Context) -> None:
        if user.protected and self.by not in user.followers:
            user.asking[self.by] = None
        else:
            _gain_follower(user, self.by, ctx)


def _gain_follower(user: User, follower: str, ctx: Context) -> None:
    user.followers[follower] = None
    if user.celebrity:
        ctx.send(follower, KnowCelebrity(author=user.key))
    _notify(user, Notice(what="follower", by=follower, at=ctx.now), ctx)


def _notify(user: User, notice: Notice, ctx: Context) -> None:
    """For the user, who may be watching, and for whoever sends mails."""
    user.notices.append(notice)
    del user.notices[:-NOTICES_KEPT]
    ctx.emit(Notified(whom=user.key, what=notice.what, by=notice.by, post=notice.post))


class LoseFollower(Command[User, None], name="lose_follower", authorize=allow.nobody):
    """Somebody follows this user no more."""

    by: Key

    def handle(self, user: User, ctx: Context) -> None:
        user.followers.pop(self.by, None)
        user.asking.pop(self.by, None)


class GainLike(Command[User, None], name="gain_like", authorize=allow.nobody):
    """Somebody likes a post of this user."""

    post: Key
    by: Key

    def handle(self, user: User, ctx: Context) -> None:
        if self.post not in user.posts:
            raise Rejected("unknown_post", f"{user.key} has no post {self.post}.")
        user.posts[self.post].likes[self.by] = None
        _notify(user, Notice(what="like", by=self.by, at=ctx.now, post=self.post), ctx)


class KnowCelebrity(Command[User, None], name="know_celebrity", authorize=allow.nobody):
    """Posts of this author are not delivered any more: ask for them."""

    author: Key

    def handle(self, user: User, ctx: Context) -> None:
        if self.author in user.following:  # not unfollowed meanwhile
            user.celebrities[self.author] = None


class Deliver(Command[User, None], name="deliver", authorize=allow.nobody):
    """A post arrives in this user's home timeline, unless the author was unfollowed meanwhile."""

    author: Key
    post: Key
    text: Text
    at: datetime

    def handle(self, user: User, ctx: Context) -> None:
        if self.author in user.following:
            user.timeline.append(TimelineEntry(author=self.author, post=self.post, text=self.text, at=self.at))
            del user.timeline[:-TIMELINE_LENGTH]
