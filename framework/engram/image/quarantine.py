"""Commands that failed: what an image keeps of them, so that somebody can look, and try again or drop them."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from typing import NamedTuple

from engram.model.version import Version

# How many are listed, and how much of what they hold; the count goes on beyond it.
LISTED = 1000
LISTED_CHARACTERS = 16 * 1024 * 1024
_ERROR_CHARACTERS = 500
_TRACEBACK_CHARACTERS = 4000


class QuarantineRow(NamedTuple):
    """A command that was quarantined, and where. `failures` is how often it has failed: more than once when it was
    tried again. The command of a record that could not be decoded is not known: it has no name.

    """

    offset: int
    index: int  # type: ignore[assignment]  # a field, not tuple.index
    command: str
    key: str
    version: Version = 0
    body: str = ""
    failures: int = 1
    time: int = 0
    error: str = ""
    traceback: str = ""

    @property
    def digested(self) -> tuple[object, ...]:
        """What counts for the digest. Texts for people do not: they may hold addresses and paths."""
        return self.offset, self.index, self.command, self.key, self.failures, self.time


class Quarantine:
    """The failed commands of one image, in the order of their positions."""

    def __init__(self) -> None:
        self.count = 0  # of all there ever were
        self._listed: dict[tuple[int, int], QuarantineRow] = {}
        self._characters = 0

    @property
    def listed(self) -> list[QuarantineRow]:
        return list(self._listed.values())

    def add(self, row: QuarantineRow, problem: Exception) -> None:
        """Counts a failure, and lists it while there is room."""
        self.count += 1
        if len(self._listed) < LISTED and self._characters + len(row.body) <= LISTED_CHARACTERS:
            error = f"{type(problem).__name__}: {problem}"[:_ERROR_CHARACTERS]
            self._list(row._replace(error=error, traceback=_told(problem)))

    def release(self, offset: int, index: int) -> int:
        """Takes a command off the list; returns how often it had failed, 0 if it is not there."""
        row = self._listed.pop((offset, index), None)
        if row is None:
            return 0
        self._characters -= len(row.body)
        return row.failures

    def load(self, rows: Iterable[QuarantineRow], count: int) -> None:
        for row in rows:
            self._list(row)
        self.count = count

    def _list(self, row: QuarantineRow) -> None:
        self._listed[row.offset, row.index] = row
        self._characters += len(row.body)


def _told(problem: Exception) -> str:
    """The traceback from the handler on; of a long one its end, where the cause is."""
    here = problem.__traceback__
    text = "".join(traceback.format_exception(type(problem), problem, here.tb_next if here is not None else None))
    return text if len(text) <= _TRACEBACK_CHARACTERS else "...\n" + text[-_TRACEBACK_CHARACTERS:]
