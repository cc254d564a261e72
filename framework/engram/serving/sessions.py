"""A client's sessions: each has one command, or one batch of them, under way."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class Sessions:
    """As many as there are requests under way at once. Names begin with `prefix`."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._opened = 0
        self._free: deque[tuple[str, int]] = deque()

    @contextmanager
    def one(self) -> Iterator[dict[str, str]]:
        """The headers of a command in a session that nobody else has meanwhile."""
        session, sequence = self._free.popleft() if self._free else self._open()
        try:
            yield {"Engram-Session": session, "Engram-Sequence": str(sequence)}
        finally:
            # The next command of the session has a greater number, whatever became of this one.
            self._free.append((session, sequence + 1))

    def _open(self) -> tuple[str, int]:
        self._opened += 1
        return f"{self._prefix}{self._opened}", 0
