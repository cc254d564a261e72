"""Positions: a command's place in the log."""

from __future__ import annotations

import re
from typing import NamedTuple

from engram.errors import Misuse

_TOKEN = re.compile(r"(\d{1,5}):(\d{1,15})\.(-?\d{1,9})")


class Position(NamedTuple):
    """Partition, offset of the record, index of the command in it. Written `3:1042.7`. What a timer fires comes before
    the record's own commands, and has an index below 0.

    Positions of one partition are ordered; those of different partitions are not comparable in meaning.
    """

    partition: int
    offset: int
    index: int  # type: ignore[assignment]  # a field, not tuple.index

    def __str__(self) -> str:
        return self.written().decode()

    def written(self) -> bytes:
        """The same as bytes."""
        return b"%d:%d.%d" % self

    @classmethod
    def parse(cls, token: str) -> Position:
        match = _TOKEN.fullmatch(token.strip())
        if match is None:
            raise Misuse(f"{token!r} is not a position: write partition:offset.index, such as 3:1042.7")
        return cls(*map(int, match.groups()))
