"""Where the rows of a read model are found: sorted, tallied, or by their words.

Each takes in and lets go of single rows, in time that follows the logarithm of how many there are. A row that is not
as declared raises, and the index is of no use any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from math import isfinite
from typing import Any, Protocol

from engram.codec.rows import Row
from engram.image.found import Found, Subtotal
from engram.image.ordered import Ordered, following, ordered, put, take
from engram.model.read_model import Ranking, ReadModel, Tally

_LARGE = 2**62  # numbers up to here are whole, and finite, without a further look


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
    """Rows by key, or by board and score: for each of these its entries in their order."""

    def __init__(self) -> None:
        self._places: dict[str, Ordered] = {}

    def add(self, owner: str, rows: Iterable[Row]) -> None:
        places = self._places
        for place, entry in self._entries(owner, rows):
            entries = places.get(place)
            if entries is None:
                places[place] = [entry]
            else:
                places[place] = put(entries, entry)

    def remove(self, owner: str, rows: Iterable[Row]) -> None:
        places = self._places
        for place, entry in self._entries(owner, rows):
            entries = places[place]
            take(entries, entry)
            if not entries:
                del places[place]

    def load(self, rows: Iterable[tuple[str, Row]]) -> None:
        places: dict[str, list[Any]] = {}
        for owner, row in rows:
            for place, entry in self._entries(owner, (row,)):
                places.setdefault(place, []).append(entry)
        self._places = {place: ordered(entries) for place, entries in places.items()}

    def find(self, place: str, after: Found | None, limit: int) -> list[Found]:
        """The first so many rows of a key or board, after one that was seen."""
        found: list[Found] = []
        last = None if after is None else self._entry(after)
        for entry in following(self._places.get(place, []), last):
            if len(found) == limit:
                break
            if entry != last:  # the same row of the same entity counts once
                found.append(self._found(entry))
            last = entry
        return found

    def _entries(self, owner: str, rows: Iterable[Row]) -> list[tuple[str, Any]]:
        """Where rows belong, and what is kept of them there: a text, that of the owner before that of the row. A tuple
        of both would be larger than they are, and slower to compare."""
        head = _head(owner)
        return [(place if type(place) is str else _place(place), head + text) for place, text in rows]

    def _entry(self, found: Found) -> Any:
        return _head(found.owner) + found.text

    def _found(self, entry: Any) -> Found:
        owner, _, text = entry.rpartition(_END)
        return Found(0, owner.replace(_ESCAPED, _NUL) if _NUL in owner else owner, text)


# After an owner, so that entries are in the order of their owners: less than anything that can be in one. JSON has
# none of these characters.
_NUL = "\0"
_END = "\0\0"
_ESCAPED = "\0\xff"


def _head(owner: str) -> str:
    return (owner.replace(_NUL, _ESCAPED) if _NUL in owner else owner) + _END


class RankedRows(SortedRows):
    """Rows by board and score, the highest first."""

    def _entries(self, owner: str, rows: Iterable[Row]) -> list[tuple[str, Any]]:
        return [
            (place if type(place) is str else _place(place), (-_number(score), owner, text))
            for place, score, text in rows
        ]

    def _entry(self, found: Found) -> Any:
        return tuple(found)

    def _found(self, entry: Any) -> Found:
        return Found(*entry)


class _Group:
    """The numbers of a group: how many, their exact sum, how often each is there, and which in their order."""

    __slots__ = ("count", "order", "times", "whole")

    def __init__(self) -> None:
        self.count = 0
        self.whole: int | Fraction = 0
        self.times: dict[float, int] = {}
        self.order: Ordered = []

    def add(self, number: float) -> None:
        self.count += 1
        self.whole += _exact(number)
        times = self.times.get(number, 0)
        self.times[number] = times + 1
        if not times:
            self.order = put(self.order, number)

    def remove(self, number: float) -> None:
        self.count -= 1
        self.whole -= _exact(number)
        times = self.times[number]
        if times > 1:
            self.times[number] = times - 1
        else:
            del self.times[number]
            take(self.order, number)


class TalliedRows:
    """Count and sum of each group, and its numbers in their order."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}

    def add(self, owner: str, rows: Iterable[Row]) -> None:
        for group, number in rows:
            found = self._groups.get(_place(group))
            if found is None:
                found = self._groups[group] = _Group()
            found.add(number)

    def remove(self, owner: str, rows: Iterable[Row]) -> None:
        for group, number in rows:
            found = self._groups[group]
            found.remove(number)
            if not found.count:
                del self._groups[group]

    def load(self, rows: Iterable[tuple[str, Row]]) -> None:
        for owner, row in rows:
            self.add(owner, (row,))

    def find(self, group: str) -> Subtotal:
        found = self._groups.get(group)
        if found is None:
            return Subtotal(0, (0, 1), None, None)
        return Subtotal(found.count, found.whole.as_integer_ratio(), found.order[0], found.order[-1])


def _exact(number: Any) -> int | Fraction:
    """A float is a fraction exactly, so what is taken away leaves what would be there without it."""
    return number if isinstance(number, int) else Fraction(_number(number))


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
    if issubclass(model, Tally):
        return TalliedRows()
    return RankedRows() if issubclass(model, Ranking) else SortedRows()


def _place(place: Any) -> str:
    if not isinstance(place, str):
        raise TypeError(f"a row begins with {place!r}, which is not a text: its key, board, group or words")
    return place


def _number(number: Any) -> float:
    if type(number) is int and -_LARGE < number < _LARGE:  # by far the most common, and quickly told
        return number
    if not (isinstance(number, int | float) and isfinite(number)):
        raise TypeError(f"{number!r} is not a number that can be put in order and added up")
    return number
