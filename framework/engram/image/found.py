"""What a partition has found in a read model, and how the finds of several become one answer."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from fractions import Fraction
from itertools import islice
from typing import NamedTuple

from engram.model.read_model import Totals


class Found(NamedTuple):
    """A row as JSON text, with its place in the answer: by order, then by the entity's key, then by the text.

    An entity is in one partition, so places of different partitions are never the same.
    """

    order: float
    owner: str
    text: str


def merge_rows(finds: Iterable[list[Found]], limit: int) -> tuple[list[Found], Found | None]:
    """The first `limit` rows of all, and the last of them if there are more."""
    first = list(islice(heapq.merge(*finds), limit + 1))
    return first[:limit], first[limit - 1] if len(first) > limit else None


class Subtotal(NamedTuple):
    """What a partition has of a group. `sum` is exact: a whole number, and what it is to be divided by."""

    count: int  # type: ignore[assignment]  # a field, not tuple.count
    sum: tuple[int, int]
    min: float | None
    max: float | None


def merge_totals(subtotals: Iterable[Subtotal]) -> Totals:
    """The totals of all. The sum is rounded only here, so that it is the same however the group is spread."""
    found = [subtotal for subtotal in subtotals if subtotal.count]
    whole = sum((Fraction(*subtotal.sum) for subtotal in found), Fraction())
    return Totals(
        count=sum(subtotal.count for subtotal in found),
        sum=whole.numerator if whole.denominator == 1 else float(whole),
        min=min((subtotal.min for subtotal in found if subtotal.min is not None), default=None),
        max=max((subtotal.max for subtotal in found if subtotal.max is not None), default=None),
    )
