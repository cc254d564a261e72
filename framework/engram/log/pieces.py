"""Cutting what goes into one partition into records of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from engram.log.base import RECORD_BYTES, RECORD_COMMANDS

T = TypeVar("T")


def pieces(items: Sequence[T], sizes_of: Callable[[Sequence[T]], list[int]]) -> Iterator[Sequence[T]]:
    """The items in order, in sequences of at most `RECORD_COMMANDS` items and `RECORD_BYTES` bytes.

    `sizes_of` gives the size of each; one that is larger than the bound is alone.
    """
    for start in range(0, len(items), RECORD_COMMANDS):
        some = items[start : start + RECORD_COMMANDS]
        sizes = sizes_of(some)
        if sum(sizes) <= RECORD_BYTES:
            yield some
        else:
            yield from _by_size(some, sizes)


def _by_size(items: Sequence[T], sizes: list[int]) -> Iterator[Sequence[T]]:
    start = total = 0
    for place, own in enumerate(sizes):
        if place > start and total + own > RECORD_BYTES:
            yield items[start:place]
            start, total = place, 0
        total += own
    yield items[start:]
