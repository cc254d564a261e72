"""Places by key, without the keys: an index that takes as little room as possible."""

from __future__ import annotations

from array import array
from collections.abc import Callable

# Each grows on its own, so that no growth takes long: of a million entries, one has four thousand.
_SEGMENTS = 256
_SEGMENT_BITS = 8
_MARK = 0xFFFF_FFFF
_EMPTY, _GONE = 0, 1
# Slots are looked through one after the other, so they must not get too full.
_FULL = 0.75
_AFTER_GROWTH = 0.5
_FEWEST = 8


class Places:
    """Numbers by key: 32 bits of the key's hash and the number, in arrays, about twenty bytes for each.

    Whoever uses it has the keys elsewhere, at those places: where the hashes of two are the same, `is_at` is asked
    whether a key is at a place.
    """

    def __init__(self, is_at: Callable[[str, int], bool]) -> None:
        self.is_at = is_at
        self._segments: list[_Segment | None] = [None] * _SEGMENTS
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def find(self, key: str) -> int | None:
        segment, mark = self._where(key)
        slot = None if segment is None else self._slot(segment, mark, key)
        return None if segment is None or slot is None else segment.places[slot]

    def has(self, key: str, place: int) -> bool:
        """Whether it is at this place, of all where it has ever been. Nobody is asked."""
        segment, mark = self._where(key)
        return segment is not None and segment.slot_of(mark, place) is not None

    def put(self, key: str, place: int) -> int | None:
        """From now on it is there; returns where it was before."""
        segment, mark = self._where(key)
        if segment is None or segment.used >= segment.most:
            segment = self._segments[hash(key) % _SEGMENTS] = _Segment(_FEWEST) if segment is None else segment.grown()
        marks, places, size = segment.marks, segment.places, segment.size
        slot = mark % size
        while found := marks[slot]:
            if found == mark and self.is_at(key, places[slot]):
                before, places[slot] = places[slot], place
                return before
            slot = slot + 1 if slot + 1 < size else 0
        marks[slot] = mark
        places[slot] = place
        segment.live += 1
        segment.used += 1
        self._count += 1
        return None

    def remove(self, key: str, place: int) -> None:
        """Forgets a key that is at this place."""
        segment, mark = self._where(key)
        slot = None if segment is None else segment.slot_of(mark, place)
        if segment is None or slot is None:
            raise KeyError(key)
        segment.marks[slot] = _GONE
        self._count -= 1
        segment.live -= 1

    def _where(self, key: str) -> tuple[_Segment | None, int]:
        hashed = hash(key)
        mark = hashed >> _SEGMENT_BITS & _MARK
        return self._segments[hashed % _SEGMENTS], mark if mark > _GONE else mark + 2

    def _slot(self, segment: _Segment, mark: int, key: str) -> int | None:
        marks, size = segment.marks, segment.size
        slot = mark % size
        while found := marks[slot]:
            if found == mark and self.is_at(key, segment.places[slot]):
                return slot
            slot = slot + 1 if slot + 1 < size else 0
        return None


class _Segment:
    """Slots of one size, of which no more than `most` are used."""

    def __init__(self, size: int) -> None:
        self.marks = array("I", bytes(4 * size))
        self.places = array("Q", bytes(8 * size))
        self.size = size
        self.most = int(size * _FULL)
        self.live = 0
        self.used = 0  # with those that are gone: a search does not end there

    def slot_of(self, mark: int, place: int) -> int | None:
        marks, size = self.marks, self.size
        slot = mark % size
        while found := marks[slot]:
            if found == mark and self.places[slot] == place:
                return slot
            slot = slot + 1 if slot + 1 < size else 0
        return None

    def grown(self) -> _Segment:
        """One with more slots; with fewer, if many are gone."""
        new = _Segment(max(_FEWEST, int((self.live + 1) / _AFTER_GROWTH)))
        for mark, place in zip(self.marks, self.places, strict=True):
            if mark > _GONE:
                slot = mark % new.size
                while new.marks[slot]:
                    slot = slot + 1 if slot + 1 < new.size else 0
                new.marks[slot] = mark
                new.places[slot] = place
        new.live = new.used = self.live
        return new
