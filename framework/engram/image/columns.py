"""The rows that one entity has, column by column, and what has changed between two moments.

By columns because old rows are compared with new ones after each command: of a row that has not changed, places and
values are mostly the same objects as before, and a tuple of them is compared with another without looking at any. A
row by itself would be a new tuple each time, and every old one a place in memory that is far from all others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import compress, count
from operator import ne
from typing import Any

from engram.codec.rows import Row

# One tuple of places, perhaps one of scores, one of rows, all of one length; empty if there are no rows.
Columns = tuple[tuple[Any, ...], ...]

NONE: Columns = ()


def columns_of(rows: list[Row], width: int) -> Columns:
    """Raises `ValueError` unless all rows have so many fields."""
    try:
        columns = tuple(zip(*rows, strict=True))
        if not columns or len(columns) == width:
            return columns
    except ValueError:
        pass
    lengths = " and ".join(map(str, sorted({len(row) for row in rows})))
    raise ValueError(f"its rows have {lengths} fields, and should have {width}")


def rows_of(columns: Columns) -> list[Row]:
    return list(zip(*columns, strict=True))


def difference(old: Columns, new: Columns) -> tuple[Columns, Iterable[Row], Iterable[Row]]:
    """What is kept, as in `new`; what goes; what comes. Of rows that are equal the old ones are kept: 1 and 1.0 are
    equal, and the index has the first.

    Most often a row is added at the end, or one goes from anywhere: that is found without hashing any.
    """
    if not old or not new:
        return new, _rows(old), _rows(new)
    before, now = len(old[0]), len(new[0])
    at = min(map(_first_difference, old, new))
    if at == before:
        added = _part(new, at, now)
        return _joined(old, added), (), _rows(added)
    end = before - 1
    if at <= end <= now and _part(old, at + 1, before) == _part(new, at, end):
        removed, added = _part(old, at, at + 1), _part(new, end, now)
        return _joined(_part(old, 0, at), _part(old, at + 1, before), added), _rows(removed), _rows(added)
    return _difference_by_hash(rows_of(old), rows_of(new))


def _first_difference(old: tuple[Any, ...], new: tuple[Any, ...]) -> int:
    """Where the two begin to differ, or the end of the shorter one."""
    return next(compress(count(), map(ne, old, new)), min(len(old), len(new)))


def _part(columns: Columns, start: int, end: int) -> Columns:
    return tuple([column[start:end] for column in columns])


def _joined(*parts: Columns) -> Columns:
    first, *others = parts
    for other in others:
        first = tuple([a + b for a, b in zip(first, other, strict=True)])
    return first if first[0] else NONE


def _rows(columns: Columns) -> Iterator[Row]:
    return zip(*columns, strict=True)


def _difference_by_hash(old: list[Row], new: list[Row]) -> tuple[Columns, Iterable[Row], Iterable[Row]]:
    same = dict(zip(old, old, strict=True))
    kept = columns_of([same.get(row, row) for row in new], len(new[0]))
    before, now = set(old), set(new)
    if len(before) == len(old) and len(now) == len(new):
        return kept, before - now, now - before
    counts, counted = Counter(old), Counter(new)
    return kept, (counts - counted).elements(), (counted - counts).elements()
