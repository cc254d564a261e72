"""Where the rows of a read model are found: sorted, tallied, or by their words.

Each takes in and lets go of single rows, in time that follows the logarithm of how many there are. A row that is not
as declared raises, and the index is of no use any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from math import isfinite
from typing import Any, Protocol

from sortedcontainers import SortedList

from engram.codec.rows import Row
from engram.image.found import Found, Subtotal
from engram.model.read_model import ReadModel, Tally


class RowIndex(Protocol):
    """The rows of all entities of a partition, as `RowCodec.placed` has them. `owner` is the key of the entity that a
    row is of."""

    def add(self, owner: str, rows: Iterable[Row]) -> None: ...

    def remove(self, owner: str, rows: Iterable[Row]) -> None: ...

    def load(self, rows: Iterable[tuple[str, Row]]) -> None:
        """Takes in many at once, with their owners."""


class TextIndex(Protocol):
    """An engine that finds rows by words: see `engram.shard.search`."""

    def add(self, docs: Iterable[tuple[str, str, str]]) -> None:
        """Takes in (owner, JSON text of the row, the text to be searched)."""

    def remove(self, doc: tuple[str, str, str]) -> None: ...

    def find(self, words: str, after: Found | None, limit: int) -> list[Found]:
        """Rows whose text has all the words, the most relevant first: its order is the lower, the better it fits."""


class SortedRows:
    """Rows by key, or by board and score. One sorted list for all: (place, order, owner, text)."""

    def __init__(self) -> None:
        self._entries: Any = SortedList()

    def add(self, owner: str, rows: Iterable[Row]) -> None:
        for row in rows:
            self._entries.add(_entry(owner, row))

    def remove(self, owner: str, rows: Iterable[Row]) -> None:
        for row in rows:
            self._entries.remove(_entry(owner, row))

    def load(self, rows: Iterable[tuple[str, Row]]) -> None:
        self._entries.update([_entry(owner, row) for owner, row in rows])

    def find(self, place: str, after: Found | None, limit: int) -> list[Found]:
        """The first so many rows of a key or board, after one that was seen."""
        found: list[Found] = []
        for entry in self._from(place, after):
            if entry[0] != place or len(found) == limit:
                break
            row = Found(*entry[1:])
            if not found or row != found[-1]:  # the same row of the same entity counts once
                found.append(row)
        return found

    def _from(self, place: str, after: Found | None) -> Iterator[tuple[Any, ...]]:
        least = (place,) if after is None else (place, *after)
        entries: Iterator[tuple[Any, ...]] = self._entries.irange(least, None, (False, True))
        return entries


def _entry(owner: str, row: Row) -> tuple[Any, ...]:
    if len(row) == 3:
        board, score, text = row
        return _place(board), -_number(score), owner, text
    key, text = row
    return _place(key), 0, owner, text


class TalliedRows:
    """Count and sum of each group, and its numbers in their order."""

    def __init__(self) -> None:
        self._groups: dict[str, tuple[int, int | Fraction]] = {}
        self._numbers: Any = SortedList()  # (group, number)

    def add(self, owner: str, rows: Iterable[Row]) -> None:
        for group, number in rows:
            self._count(group, number, 1)
            self._numbers.add((group, number))

    def remove(self, owner: str, rows: Iterable[Row]) -> None:
        for group, number in rows:
            self._count(group, number, -1)
            self._numbers.remove((group, number))

    def load(self, rows: Iterable[tuple[str, Row]]) -> None:
        numbers = [(group, number) for _, (group, number) in rows]
        for group, number in numbers:
            self._count(group, number, 1)
        self._numbers.update(numbers)

    def find(self, group: str) -> Subtotal:
        if group not in self._groups:
            return Subtotal(0, (0, 1), None, None)
        count, whole = self._groups[group]
        at = self._numbers.bisect_left((group,))
        return Subtotal(count, whole.as_integer_ratio(), self._numbers[at][1], self._numbers[at + count - 1][1])

    def _count(self, group: Any, number: Any, times: int) -> None:
        count, whole = self._groups.get(_place(group), (0, 0))
        # A float is a fraction exactly, so what is taken away leaves what would be there without it.
        exact = number if isinstance(number, int) else Fraction(_number(number))
        if count + times:
            self._groups[group] = count + times, whole + times * exact
        else:
            del self._groups[group]


class SearchedRows:
    """Rows by the words of their texts, in an engine for that."""

    def __init__(self, engine: TextIndex) -> None:
        self._engine = engine

    def add(self, owner: str, rows: Iterable[Row]) -> None:
        docs = [(owner, row, _place(text)) for text, row in rows]
        if docs:
            self._engine.add(docs)

    def remove(self, owner: str, rows: Iterable[Row]) -> None:
        for text, row in rows:
            self._engine.remove((owner, row, text))

    def load(self, rows: Iterable[tuple[str, Row]]) -> None:
        self._engine.add((owner, row, text) for owner, (text, row) in rows)

    def find(self, words: str, after: Found | None, limit: int) -> list[Found]:
        found = self._engine.find(words, after, limit)
        return list(dict.fromkeys(found))


Index = SortedRows | TalliedRows | SearchedRows


def index_for(model: type[ReadModel], engine: TextIndex | None) -> Index:
    """An empty index; one with an engine is for a search."""
    if engine is not None:
        return SearchedRows(engine)
    return TalliedRows() if issubclass(model, Tally) else SortedRows()


def _place(place: Any) -> str:
    if not isinstance(place, str):
        raise TypeError(f"a row begins with {place!r}, which is not a text: its key, board, group or words")
    return place


def _number(number: Any) -> float:
    if not (isinstance(number, int | float) and isfinite(number)):
        raise TypeError(f"{number!r} is not a number that can be put in order and added up")
    return number
