"""What can be read of a user."""

from __future__ import annotations

from datetime import datetime
from itertools import islice
from typing import Annotated

from engram import Principal, Query, Rejected, allow
from pydantic import BaseModel, ConfigDict, Field

from sample_apps.social.user import Notice, User

Limit = Annotated[int, Field(ge=1, le=200)]


class _View(BaseModel):
    model_config = ConfigDict(frozen=True)


class ProfileCard(_View):
    key: str
    name: str
    since: datetime
    following: int
    followers: int
    posts: int
    likes: int


class PostView(_View):
    post: str
    text: str
    at: datetime
    likes: int


class DraftView(_View):
    post: str
    text: str
    at: datetime


class TimelineView(_View):
    author: str
    post: str
    text: str
    at: datetime


def _may_read(principal: Principal, user: User) -> bool:
    """A protected account is for those who follow it, and for itself."""
    return not user.protected or principal.name == user.key or principal.name in user.followers


class Profile(Query[User, ProfileCard], name="profile", authorize=allow.anyone):
    """Who somebody is, in numbers."""

    def answer(self, user: User) -> ProfileCard:
        if user.since is None:
            raise Rejected("unknown_user", f"There is no user {user.key}.")
        return ProfileCard(
            key=user.key,
            name=user.name,
            since=user.since,
            following=len(user.following),
            followers=len(user.followers),
            posts=len(user.posts),
            likes=sum(len(post.likes) for post in user.posts.values()),
        )


class Posts(Query[User, list[PostView]], name="posts", authorize=allow.anyone):
    """A user's own posts, newest first."""

    limit: Limit = 20

    def authorize_entity(self, principal: Principal, user: User) -> bool:
        return _may_read(principal, user)

    def answer(self, user: User) -> list[PostView]:
        newest = islice(reversed(user.posts.items()), self.limit)
        return [PostView(post=key, text=p.text, at=p.at, likes=len(p.likes)) for key, p in newest]


class Drafts(Query[User, list[DraftView]], name="drafts", authorize=allow.owner):
    """A user's posts that wait to be published, in the order in which they were written."""

    def answer(self, user: User) -> list[DraftView]:
        return [DraftView(post=key, text=draft.text, at=draft.at) for key, draft in user.drafts.items()]


class Timeline(Query[User, list[TimelineView]], name="timeline", authorize=allow.owner):
    """What those whom a user follows have published, newest first."""

    limit: Limit = 20

    def answer(self, user: User) -> list[TimelineView]:
        newest = islice(reversed(user.timeline), self.limit)
        return [TimelineView(author=e.author, post=e.post, text=e.text, at=e.at) for e in newest]


class Notifications(Query[User, list[Notice]], name="notifications", authorize=allow.owner):
    """What a user wants to hear of at once, newest first: to be watched."""

    limit: Limit = 20

    def answer(self, user: User) -> list[Notice]:
        return list(islice(reversed(user.notices), self.limit))


class Celebrities(Query[User, list[str]], name="celebrities", authorize=allow.owner):
    """Those whom a user follows and whose posts are not delivered: ask for theirs. See home.py."""

    def answer(self, user: User) -> list[str]:
        return list(user.celebrities)


class Following(Query[User, list[str]], name="following", authorize=allow.anyone):
    """Whom a user follows, in the order it began."""

    def authorize_entity(self, principal: Principal, user: User) -> bool:
        return _may_read(principal, user)

    def answer(self, user: User) -> list[str]:
        return list(user.following)


class Asking(Query[User, list[str]], name="asking", authorize=allow.owner):
    """Who asks to follow a protected account, in the order it began."""

    def answer(self, user: User) -> list[str]:
        return list(user.asking)


class Followers(Query[User, list[str]], name="followers", authorize=allow.anyone):
    """Who follows a user, in the order it began."""

    def authorize_entity(self, principal: Principal, user: User) -> bool:
        return _may_read(principal, user)

    def answer(self, user: User) -> list[str]:
        return list(user.followers)
