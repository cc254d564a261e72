"""Limits: what one command may bring about at most."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """A handler that goes beyond is quarantined, and nothing of it is left.

    `sends`: messages of one command. `sent_bytes`: the size of their bodies together. `depth`: how many messages may
    follow from each other until a client's command, or a timer, begins anew. Part of what handlers do: a change
    of limits is a new version of the app.
    """

    sends: int = 200_000
    sent_bytes: int = 64 * 1024 * 1024
    depth: int = 100
