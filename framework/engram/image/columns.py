"""The rows that one entity has, column by column, and what has changed between two moments.

By columns because old rows are compared with new ones after each command: of a row that has not changed, places and
values are mostly the same objects as before, and a tuple of them is compared with another without looking at any. A
row by itself would be a new tuple each time, and every old one a place in memory that is far from all others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import compress
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
    before = len(old[0])
    at = before  # where they begin to differ
    for was, now in zip(old, new, strict=True):
        at = next(compress(range(at), map(ne, was, now)), min(at, len(now)))
    if at == before:
        added = [now[at:] for now in new]
        return tuple([was + more for was, more in zip(old, added, strict=True)]), (), _rows(added)
    end = before - 1
    for was, now in zip(old, new, strict=True):
        if was[at + 1 :] != now[at:end]:
            return _difference_by_hash(rows_of(old), rows_of(new))
    kept = tuple([was[:at] + was[at + 1 :] + now[end:] for was, now in zip(old, new, strict=True)])
    removed = tuple([was[at] for was in old])
    return kept if kept[0] else NONE, (removed,), _rows([now[end:] for now in new])


def _rows(columns: Iterable[tuple[Any, ...]]) -> Iterator[Row]:
    return zip(*columns, strict=True)


def _difference_by_hash(old: list[Row], new: list[Row]) -> tuple[Columns, Iterable[Row], Iterable[Row]]:
    same = dict(zip(old, old, strict=True))
    kept = columns_of([same.get(row, row) for row in new], len(new[0]))
    before, now = set(old), set(new)
    if len(before) == len(old) and len(now) == len(new):
        return kept, before - now, now - before
    counts, counted = Counter(old), Counter(new)
    return kept, (counts - counted).elements(), (counted - counts).elements()
