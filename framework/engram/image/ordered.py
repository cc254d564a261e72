"""Values in their order, for as many as there are: a list while they are few, a list of lists from then on."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import Any

from sortedcontainers import SortedList

# Up to here one list is faster: what moves in it is moved by the processor, what a list of lists does is Python.
MANY = 8192

# A SortedList beyond `MANY`: it has the methods of a list that are used, and is searched by its own.
Ordered = Any


def ordered(values: list[Any]) -> Ordered:
    """All at once."""
    if len(values) > MANY:
        return SortedList(values)
    values.sort()
    return values


def put(values: Ordered, value: Any) -> Ordered:
    """The values with one more, which is after its equals; in place, unless they have become many."""
    if type(values) is not list:
        values.add(value)
        return values
    insort(values, value)
    return values if len(values) <= MANY else SortedList(values)


def take(values: Ordered, value: Any) -> None:
    """Leaves one of these values out. Raises `ValueError` if there is none."""
    if type(values) is not list:
        values.remove(value)
        return
    at = bisect_left(values, value)
    if at == len(values) or values[at] != value:
        raise ValueError(f"{value!r} is not among the values")
    del values[at]


def following(values: Ordered, value: Any) -> Iterator[Any]:
    """Those that are greater, one after the other; all of them after None."""
    if type(values) is list:
        start = 0 if value is None else bisect_right(values, value)
        return map(values.__getitem__, range(start, len(values)))
    found: Iterator[Any] = values.irange(minimum=value, inclusive=(False, False))
    return found
