"""What an image remembers of commands it has handled, so that the same command again changes nothing.

Two memories. A client's **session** sends one command at a time, with growing sequence numbers: one watermark
and one outcome per session are enough. An **idempotency key** names one command for itself: keys and outcomes
are kept in a window. Both are bounded, and what falls out is decided by the log alone: see `Window`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from engram.errors import Rejected
from engram.image.outcome import Outcome, rejection

STALE = rejection(Rejected("already_handled", "This command was handled before, and its reply is no longer kept."))
REUSED = rejection(Rejected("idempotency_key_reused", "This idempotency key was used before for a different command."))


@dataclass(frozen=True, slots=True)
class Window:
    """How much a partition remembers. Outside it a repeated command is handled as a new one.

    `sessions`: at least this many of the most recently active sessions (twice as many before the idle half
    is forgotten). `idempotency_keys`: exactly the latest so many. Part of the state: the same on every owner.
    """

    sessions: int = 65_536
    idempotency_keys: int = 65_536


class Seen(NamedTuple):
    """The latest command of a session: its sequence number, its outcome, and the offset of its record.

    Never changed, only replaced: so a copy of all sessions is one of a dict, which a snapshot takes without a pause.
    """

    sequence: int
    outcome: Outcome
    offset: int


_NEW = Seen(-1, STALE, -1)


class Dedupe:
    """The memory of one image. `first` is no part of its state: it has the record of each key's command, for as long as
    the image has lived since its snapshot."""

    __slots__ = ("first", "keys", "sessions", "window")

    def __init__(self, window: Window) -> None:
        self.window = window
        self.sessions: dict[str, Seen] = {}
        self.keys: dict[str, tuple[str, Outcome]] = {}
        self.first: dict[str, int] = {}

    def sessions_of(self, names: Sequence[str]) -> list[Seen]:
        """What is remembered of these sessions; those that were not known are opened."""
        sessions = self.sessions
        return [sessions.get(name) or self._open_session(name) for name in names]

    def _open_session(self, session: str) -> Seen:
        if len(self.sessions) >= 2 * self.window.sessions:
            self._forget_idle_sessions()
        self.sessions[session] = _NEW
        return _NEW

    def recall(self, session: str, sequence: int) -> Outcome:
        """The outcome of a command that was handled; `STALE` if it is no longer kept."""
        seen = self.sessions[session]
        return seen.outcome if sequence == seen.sequence else STALE

    def handled(self, session: str, sequence: int) -> bool:
        """Whether this command was handled, as far as is remembered."""
        seen = self.sessions.get(session)
        return seen is not None and sequence <= seen.sequence

    def recall_key(self, key: str, fingerprint: str) -> Outcome | None:
        """The outcome of the command with this idempotency key, `REUSED` if that was another command."""
        kept = self.keys.get(key)
        if kept is None:
            return None
        return kept[1] if kept[0] == fingerprint else REUSED

    def remember_key(self, key: str, fingerprint: str, outcome: Outcome, offset: int) -> None:
        if len(self.keys) >= self.window.idempotency_keys:
            oldest = next(iter(self.keys))
            del self.keys[oldest]
            self.first.pop(oldest, None)
        self.keys[key] = fingerprint, outcome
        self.first[key] = offset

    def _forget_idle_sessions(self) -> None:
        # By the offset of the last use, then by name: the same sessions on every owner and replay.
        idle = sorted(self.sessions, key=lambda s: (self.sessions[s].offset, s))
        for session in idle[: len(idle) - self.window.sessions]:
            del self.sessions[session]


def all_new(seen: Sequence[Seen], session: Sequence[int], sequence: Sequence[int]) -> bool:
    """Whether every command of a record is new: its number greater than all before it in its session."""
    last = [s.sequence for s in seen]
    for which, number in zip(session, sequence, strict=True):
        if number <= last[which]:
            return False
        last[which] = number
    return True


def fingerprint(name: str, key: str, body: bytes) -> str:
    """Tells two commands with the same idempotency key apart."""
    return blake2b(b"\0".join([name.encode(), key.encode(), body]), digest_size=8).hexdigest()
