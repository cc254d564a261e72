"""The rows that one entity has, column by column, and what has changed between two moments.

By columns because old rows are compared with new ones after each command: of a row that has not changed, places and
values are mostly the same objects as before, and a tuple of them is compared with another without looking at any. A
row by itself would be a new tuple each time, and every old one a place in memory that is far from all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain, compress, count
from operator import itemgetter, ne
from sys import intern
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


def difference(old: Columns, new: Columns, *, alike: bool = False) -> tuple[Columns, Iterable[Row], Iterable[Row]]:
    """What is kept, as in `new`; what goes; what comes.

    Of rows that are equal the old ones are kept: 1 and 1.0 are equal, and the index has the first. If equal rows are
    `alike` to the index, and made of the same objects as before, `new` is kept as it is.

    Most often a row is added at the end, one goes from anywhere, or one is another: that is found without hashing any.
    """
    if not old or not new:
        return new, _rows(old), _rows(new)
    before = at = len(old[0])  # where they begin to differ
    for was, now in zip(old, new):  # noqa: B905 - to be strict takes as long as all the rest
        if was[:at] != now[:at]:
            at = next(compress(count(), map(ne, was, now)), len(now))
    if at == before:
        come = [now[at:] for now in new]
        same = alike and old[0][0] is new[0][0]
        return new if same else _joined(list(old), come), (), _rows(come)
    gone, after, end = tuple(map(itemgetter(at), old)), at + 1, before - 1
    if _equal(old, after, new, at, end):
        if not new[0]:
            return NONE, (gone,), ()
        come = [now[end:] for now in new]
        same = alike and before > 1 and old[0][0 if at else 1] is new[0][0]
        return new if same else _joined([was[:at] + was[after:] for was in old], come), (gone,), _rows(come)
    if len(new[0]) == before and _equal(old, after, new, after, before):
        kept = tuple([was[:at] + now[at:after] + was[after:] for was, now in zip(old, new, strict=True)])
        return kept, (gone,), (tuple(map(itemgetter(at), new)),)
    return _difference_by_hash(rows_of(old), rows_of(new))


def _equal(old: Columns, after: int, new: Columns, start: int, end: int) -> bool:
    """Whether the old rows from `after` on are a part of the new ones."""
    for was, now in zip(old, new):  # noqa: B905, SIM110 - as above
        if was[after:] != now[start:end]:
            return False
    return True


def _joined(left: list[tuple[Any, ...]], come: list[tuple[Any, ...]]) -> Columns:
    """Columns of rows that are left, and of those that come after them.

    Places are made anew each time, here: one object for all that are equal takes less memory, and is at hand when they
    are compared.
    """
    places = left[0]
    with suppress(TypeError):  # a place that is no text is for the index to tell
        if places and intern(places[0]) is not places[0]:
            left[0] = tuple(map(intern, places))
        come[0] = tuple(map(intern, come[0]))
    return tuple([some + more for some, more in zip(left, come, strict=True)])


def _rows(columns: Iterable[tuple[Any, ...]]) -> Iterator[Row]:
    return zip(*columns)  # noqa: B905 - as above


def _difference_by_hash(old: list[Row], new: list[Row]) -> tuple[Columns, Iterable[Row], Iterable[Row]]:
    before, now = set(old), set(new)
    if len(before) == len(old) and len(now) == len(new):
        same = dict(zip(old, old, strict=True))
        return columns_of([same.get(row, row) for row in new], len(new[0])), before - now, now - before
    left: dict[Row, list[Row]] = {}  # some are equal: each takes the place of one
    for row in old:
        left.setdefault(row, []).append(row)
    kept, added = [], []
    for row in new:
        equal = left.get(row)
        if not equal:
            added.append(row)
        kept.append(equal.pop() if equal else row)
    return columns_of(kept, len(new[0])), chain.from_iterable(left.values()), added
