"""Facts for the outside: what a notification service would want to know."""

from __future__ import annotations

from engram import Event


class Followed(Event, name="followed"):
    who: str
    whom: str


class Published(Event, name="published"):
    author: str
    post: str
