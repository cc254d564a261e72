"""Load without end: the same commands again and again, each time from other sessions."""

from __future__ import annotations

from collections.abc import Sequence

from engram.clock import system_clock
from engram.log.base import Entry


class Laps:
    """Made once, and appended in no time. `laps` are records of commands, whose sessions' names begin with an s."""

    def __init__(self, laps: Sequence[Sequence[Entry]]) -> None:
        self._laps = [[(entry, _around(entry.payload, b'"sessions":[', b"]")) for entry in lap] for lap in laps]
        self._given = 0

    def next(self) -> list[Entry]:
        """The next lap; after the last comes the first. None of its commands was handled before."""
        lap = self._laps[self._given % len(self._laps)]
        self._given += 1
        mark, now = b'"%d.s' % self._given, system_clock()
        return [
            entry._replace(time=now, payload=head + sessions.replace(b'"s', mark) + rest)
            for entry, (head, sessions, rest) in lap
        ]


def _around(payload: bytes, before: bytes, after: bytes) -> tuple[bytes, bytes, bytes]:
    """What is up to a text, between it and another, and from that on."""
    start = payload.index(before) + len(before)
    end = payload.index(after, start)
    return payload[:start], payload[start:end], payload[end:]
