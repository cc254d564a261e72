"""Cutting what goes into one partition into records of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from engram.codec.record import Envelope, Message
from engram.log.base import RECORD_BYTES, RECORD_COMMANDS

T = TypeVar("T")


def pieces(items: Iterable[T], command: Callable[[T], Envelope | Message]) -> Iterator[list[T]]:
    """The items in order, in lists of at most `RECORD_COMMANDS` commands and `RECORD_BYTES` bytes.

    `command` gives an item's own; one that is larger than the bound is alone in its list.
    """
    piece: list[T] = []
    size = 0
    for item in items:
        own = len(command(item).body) + len(command(item).key)
        if piece and (len(piece) >= RECORD_COMMANDS or size + own > RECORD_BYTES):
            yield piece
            piece, size = [], 0
        piece.append(item)
        size += own
    if piece:
        yield piece
