"""Everything Engram raises, one tree:

EngramError
├── Rejected         a domain refusal by a handler: a normal reply, never retried
├── Denied           who asks may not: their token or the app's declaration says so, never retried
│   └── Unauthenticated  nobody knows who asks: there is no token, or not a good one
├── Quarantined      a handler raised something else: the command left no trace and is kept for inspection
├── Unavailable      not now: retry later (a shard is recovering, a deadline passed)
│   ├── Behind       the state has not reached the asked-for position in time
│   ├── Unsettled    a command was handled, and it is not known whether all that it led to was
│   └── Fenced       another owner has taken the partition
├── Corrupt          bytes of log or snapshot cannot be trusted: the partition stops and touches nothing
└── Misuse           a developer's or operator's mistake: raised at start or at the call
    ├── Ahead        the asked-for position is beyond the end of the log: it is of another log, or of its future
    └── Foreign      a token or cursor was changed on its way, or is of another app
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = [
    "Ahead",
    "Behind",
    "Corrupt",
    "Denied",
    "EngramError",
    "Fenced",
    "Foreign",
    "Misuse",
    "Quarantined",
    "Rejected",
    "Unauthenticated",
    "Unavailable",
    "Unsettled",
]


class Gap(NamedTuple):
    """How far something is from what was asked for, in offsets of records: `at` is the last that is there."""

    partition: int
    at: int
    asked_for: int


class EngramError(Exception):
    """The root of the tree; never raised itself."""


class Rejected(EngramError):
    """A handler's refusal. It changes nothing, and the sender gets `code` and `text`.

    `code` is for programs (stable, snake_case), `text` is for people.
    """

    def __init__(self, code: str, text: str = "") -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text

    def __str__(self) -> str:
        return f"{self.code}: {self.text}" if self.text else self.code


class Denied(EngramError):
    """Who asks may not do this, or not see it. Nothing was logged or read."""


class Unauthenticated(Denied):
    """There was no token where one is needed, or one that is not good: expired, of somebody else, or not a token."""


class Quarantined(EngramError):
    """The command's handler raised an exception that is not `Rejected`. State is as before the command."""


class Unavailable(EngramError):
    """Nothing is wrong with the request; it cannot be served now. Whether a command was logged is unknown
    unless the message says so: send it again with the same id."""


class Behind(Unavailable):
    """A read asked for a position that the state did not reach before the deadline; `gap` says how much was missing."""

    def __init__(self, text: str, gap: Gap | None = None) -> None:
        super().__init__(text)
        self.gap = gap


class Unsettled(Unavailable):
    """The command was handled, and has its effect; whether the messages that it led to have been handled as well could
    not be found out in time. Sending it again with the same id changes nothing."""


class Fenced(Unavailable):
    """An owner has met the epoch record of a newer one, and stops."""


class Corrupt(EngramError):
    """Bytes that cannot be decoded or do not match their checksum. Says where, and changes nothing."""


class Misuse(EngramError):
    """Something a person must change: the app's declaration, an option, a folder, an argument."""


class Ahead(Misuse):
    """A read asked for a position that the log does not have: the log was restored from an older backup, or the
    position is of another log. `gap` has both."""

    def __init__(self, text: str, gap: Gap | None = None) -> None:
        super().__init__(text)
        self.gap = gap


class Foreign(Misuse):
    """A token or cursor that is not as it was given out, or that another app has given out."""
