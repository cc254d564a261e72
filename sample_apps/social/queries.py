"""What can be read of a user."""

from __future__ import annotations

from datetime import datetime
from itertools import islice
from typing import Annotated

from engram import Query, Rejected
from pydantic import BaseModel, ConfigDict, Field

from sample_apps.social.user import User

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


class Profile(Query[User, ProfileCard], name="profile"):
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


class Posts(Query[User, list[PostView]], name="posts"):
    """A user's own posts, newest first."""

    limit: Limit = 20

    def answer(self, user: User) -> list[PostView]:
        newest = islice(reversed(user.posts.items()), self.limit)
        return [PostView(post=key, text=p.text, at=p.at, likes=len(p.likes)) for key, p in newest]


class Drafts(Query[User, list[DraftView]], name="drafts"):
    """A user's posts that wait to be published, in the order in which they were written."""

    def answer(self, user: User) -> list[DraftView]:
        return [DraftView(post=key, text=draft.text, at=draft.at) for key, draft in user.drafts.items()]


class Timeline(Query[User, list[TimelineView]], name="timeline"):
    """What those whom a user follows have published, newest first."""

    limit: Limit = 20

    def answer(self, user: User) -> list[TimelineView]:
        newest = islice(reversed(user.timeline), self.limit)
        return [TimelineView(author=e.author, post=e.post, text=e.text, at=e.at) for e in newest]


class Following(Query[User, list[str]], name="following"):
    """Whom a user follows, in the order it began."""

    def answer(self, user: User) -> list[str]:
        return list(user.following)


class Followers(Query[User, list[str]], name="followers"):
    """Who follows a user, in the order it began."""

    def answer(self, user: User) -> list[str]:
        return list(user.followers)
