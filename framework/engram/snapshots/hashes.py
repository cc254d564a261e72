"""The digest of a snapshot, kept while entities change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from engram.image.contents import EntityColumns, hashes_of
from engram.image.digest import HASH_BYTES, add_hashes, take_hashes

if TYPE_CHECKING:
    import pyarrow as pa

# Each is gone over on its own: many small ones would take longer than one.
_MOST_RUNS = 64


class Hashes:
    """The hash of every entity of a snapshot, by type and key, and their sum, which is most of its digest.

    A hash takes 32 bytes, a key its own and four more. Hashes of those that change are found by going over all keys, by
    Arrow, without Python's lock. If they are not `kept`, there is only their sum.
    """

    def __init__(self, *, kept: bool = True) -> None:
        self._kept = kept
        self._runs: dict[str, list[_Run]] = {}
        self.total = 0
        self.count = 0

    def add(self, columns: EntityColumns) -> None:
        """Entities that are not there yet."""
        hashes = hashes_of(columns)
        self.total = add_hashes(self.total, hashes)
        self.count += len(hashes)
        if self._kept:
            self.join(columns.entity, _Run(_keys(columns), bytearray(b"".join(hashes))))

    def join(self, entity: str, run: _Run) -> None:
        runs = self._runs.setdefault(entity, [])
        if len(run.keys):
            runs.append(run)
        if len(runs) > _MOST_RUNS:
            self._runs[entity] = [_together(runs)]

    def change(self) -> Change:
        return Change(self)

    def find(self, entity: str, keys: pa.Array) -> Iterator[tuple[int, _Run, int]]:
        """Of those keys that are there: which it is, and its place in a run."""
        import pyarrow.compute as pc

        for run in self._runs.get(entity, []):
            found = pc.index_in(run.keys, value_set=keys)
            places = pc.indices_nonzero(found.is_valid()).to_pylist()
            numbers = found.drop_null().to_pylist()
            yield from ((number, run, place) for number, place in zip(numbers, places, strict=True))


class Change:
    """What becomes of hashes when entities change or come: known before it takes place, each entity once."""

    def __init__(self, hashes: Hashes) -> None:
        self._hashes = hashes
        self._pieces: list[tuple[str, _Run]] = []
        self.total = hashes.total
        self.count = hashes.count
        self.changed = 0

    def put(self, columns: EntityColumns) -> None:
        new = hashes_of(columns)
        run = _Run(_keys(columns), bytearray(b"".join(new)))
        old = [of.hash_at(place) for _, of, place in self._hashes.find(columns.entity, run.keys)]
        self.total = add_hashes(take_hashes(self.total, old), new)
        self.count += len(new) - len(old)
        self.changed += len(new)
        if new:
            self._pieces.append((columns.entity, run))

    def take_place(self) -> None:
        """The hashes are from now on those of the changed entities."""
        hashes = self._hashes
        for entity, run in self._pieces:
            known: set[int] = set()
            for number, of, place in hashes.find(entity, run.keys):
                of.put(place, run.hash_at(number))
                known.add(number)
            hashes.join(entity, run.without(known))
        hashes.total, hashes.count = self.total, self.count


class _Run(NamedTuple):
    """Hashes of some entities of one type, in the order of their keys."""

    keys: pa.Array
    hashes: bytearray

    def hash_at(self, place: int) -> bytes:
        return bytes(self.hashes[place * HASH_BYTES : (place + 1) * HASH_BYTES])

    def put(self, place: int, hashed: bytes) -> None:
        self.hashes[place * HASH_BYTES : (place + 1) * HASH_BYTES] = hashed

    def without(self, places: set[int]) -> _Run:
        import pyarrow as pa

        if not places:
            return self
        kept = [place for place in range(len(self.keys)) if place not in places]
        return _Run(self.keys.take(pa.array(kept, pa.int64())), bytearray(b"".join(map(self.hash_at, kept))))


def _together(runs: list[_Run]) -> _Run:
    import pyarrow as pa

    return _Run(pa.concat_arrays([run.keys for run in runs]), bytearray().join(run.hashes for run in runs))


def _keys(columns: EntityColumns) -> pa.Array:
    import pyarrow as pa

    return pa.array(columns.keys, pa.string())
