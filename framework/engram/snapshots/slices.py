"""Entities in slices of bounded size, so that what is written or read at once fits into memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from engram.image.contents import EntityColumns
from engram.model.version import Version

# Of states and rows in one part of a snapshot. While it is written it is in memory several times: as objects, as Arrow
# columns, sorted, and encoded. Larger ones make fewer files.
SLICE_BYTES = 8 * 1024 * 1024
# So many entities are added to a slice at once, or fewer if they are large: an eighth of a slice.
_AT_ONCE = 1000
_PIECES = 8


def in_slices(columns: Iterable[EntityColumns], limit: int) -> Iterator[list[EntityColumns]]:
    """The same, by type and version, in slices of about `limit` bytes; at least one, which may be empty."""
    gathered = _Gathered()
    given = False
    for every in columns:
        for size, piece in _pieces(every, limit):
            gathered.add(piece, size)
            if gathered.size >= limit:
                yield gathered.columns
                gathered, given = _Gathered(), True
    if gathered.size or not given:
        yield gathered.columns


def size_of(columns: EntityColumns) -> int:
    """Bytes of keys, states and rows."""
    rows = sum(len(row) for row in columns.rows if row)
    return sum(map(len, columns.keys)) + sum(map(len, columns.states)) + rows


class _Gathered:
    def __init__(self) -> None:
        self._by_type: dict[tuple[str, Version], tuple[list[str], list[bytes], list[bytes | None]]] = {}
        self.size = 0

    def add(self, piece: EntityColumns, size: int) -> None:
        keys, states, rows = self._by_type.setdefault((piece.entity, piece.version), ([], [], []))
        keys += piece.keys
        states += piece.states
        rows += piece.rows or [None] * len(piece.keys)
        self.size += size

    @property
    def columns(self) -> list[EntityColumns]:
        return [EntityColumns(name, version, *lists) for (name, version), lists in self._by_type.items()]


def _pieces(columns: EntityColumns, limit: int) -> Iterator[tuple[int, EntityColumns]]:
    """With the size of each."""
    name, version, keys, states, rows = columns
    size = size_of(columns)
    most = limit * len(keys) // (_PIECES * max(size, 1))
    count = max(1, min(_AT_ONCE, most))
    if 0 < len(keys) <= count:
        yield size, columns
        return
    for start in range(0, len(keys), count):
        end = start + count
        piece = EntityColumns(name, version, keys[start:end], states[start:end], rows[start:end])
        yield size_of(piece), piece
