"""Facts for the outside: what a notification service would want to know."""

from __future__ import annotations

from typing import Literal

from engram import Event


class Followed(Event, name="followed"):
    who: str
    whom: str


class Published(Event, name="published"):
    author: str
    post: str


class Notified(Event, name="notified"):
    """Something that a user wants to hear of at once: a new follower, or a like of a post."""

    whom: str
    what: Literal["follower", "like"]
    by: str
    post: str | None = None
