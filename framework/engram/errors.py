"""Everything Engram raises, one tree:

EngramError
├── Rejected         a domain refusal by a handler: a normal reply, never retried
├── Quarantined      a handler raised something else: the command left no trace and is kept for inspection
├── Unavailable      not now: retry later (a shard is recovering, a deadline passed)
│   ├── Behind       the state has not reached the asked-for position in time
│   └── Fenced       another owner has taken the partition
├── Corrupt          bytes of log or snapshot cannot be trusted: the partition stops and touches nothing
└── Misuse           a developer's or operator's mistake: raised at start or at the call
"""

from __future__ import annotations

__all__ = ["Behind", "Corrupt", "EngramError", "Fenced", "Misuse", "Quarantined", "Rejected", "Unavailable"]


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


class Quarantined(EngramError):
    """The command's handler raised an exception that is not `Rejected`. State is as before the command."""


class Unavailable(EngramError):
    """Nothing is wrong with the request; it cannot be served now. Whether a command was logged is unknown
    unless the message says so: send it again with the same id."""


class Behind(Unavailable):
    """A read asked for a position that the state did not reach before the deadline."""


class Fenced(Unavailable):
    """An owner has met the epoch record of a newer one, and stops."""


class Corrupt(EngramError):
    """Bytes that cannot be decoded or do not match their checksum. Says where, and changes nothing."""


class Misuse(EngramError):
    """Something a person must change: the app's declaration, an option, a folder, an argument."""
