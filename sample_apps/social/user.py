"""The entity: one user with everything that belongs to them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from engram import Entity, Json, Part, upcaster

TIMELINE_LENGTH = 200
NOTICES_KEPT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEntry:
    """A post of somebody else, as it stands in a reader's home timeline."""

    author: str
    post: str
    text: str
    at: datetime


@dataclass(slots=True, kw_only=True)
class Post(Part):
    text: str
    at: datetime
    likes: dict[str, None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A post that waits for its time, and the handle of the timer that it waits with."""

    text: str
    at: datetime
    timer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something that a user wants to hear of at once: a new follower, or a like of a post."""

    what: Literal["follower", "like"]
    by: str
    at: datetime
    post: str | None = None


@dataclass(slots=True, kw_only=True)
class User(Entity, name="user", version=3):
    name: str = ""
    since: datetime | None = None
    following: dict[str, datetime] = field(default_factory=dict)
    followers: dict[str, None] = field(default_factory=dict)
    posts: dict[str, Post] = field(default_factory=dict)
    liked: dict[str, None] = field(default_factory=dict)
    timeline: list[TimelineEntry] = field(default_factory=list)
    drafts: dict[str, Draft] = field(default_factory=dict)
    celebrity: bool = False  # posts are not delivered: see home.py
    celebrities: dict[str, None] = field(default_factory=dict)  # those among `following`

    protected: bool = False  # only followers may read
    asking: dict[str, None] = field(default_factory=dict)  # who wants to follow a protected account
    notices: list[Notice] = field(default_factory=list)  # the newest last

    @property
    def registered(self) -> bool:
        return self.since is not None


@upcaster(User, from_version=1)
def nobody_was_protected(old: Json) -> Json:
    """What is new has defaults."""
    return old


@upcaster(User, from_version=2)
def nobody_was_notified(old: Json) -> Json:
    """The same."""
    return old
