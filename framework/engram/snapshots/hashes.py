"""The digest of a snapshot, kept while entities change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from engram.image.contents import EntityColumns, hashes_of
from engram.image.digest import HASH_BYTES, MODULUS

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

# Each is gone over on its own: many small ones would take longer than one.
_MOST_RUNS = 64
_WORD_BITS = 32


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
        hashes = _matrix(columns)
        self.total = (self.total + _sum(hashes)) % MODULUS
        self.count += len(hashes)
        if self._kept:
            self.join(columns.entity, _Run(_keys(columns), hashes))

    def join(self, entity: str, run: _Run) -> None:
        runs = self._runs.setdefault(entity, [])
        if len(run.keys):
            runs.append(run)
        if len(runs) > _MOST_RUNS:
            self._runs[entity] = [_together(runs)]

    def change(self) -> Change:
        return Change(self)

    def find(self, entity: str, keys: pa.Array) -> Iterator[_Found]:
        """Those of the keys that are there."""
        import pyarrow.compute as pc

        for run in self._runs.get(entity, []):
            numbers = pc.index_in(run.keys, value_set=keys)
            places = pc.indices_nonzero(numbers.is_valid()).to_numpy()
            if len(places):
                yield _Found(numbers.drop_null().to_numpy(), run.hashes, places)


class Change:
    """What becomes of hashes when entities change or come: known before it takes place, each entity once."""

    def __init__(self, hashes: Hashes) -> None:
        self._hashes = hashes
        self._pieces: list[tuple[str, _Run]] = []
        self.total = hashes.total
        self.count = hashes.count
        self.changed = 0

    def put(self, columns: EntityColumns) -> None:
        run = _Run(_keys(columns), _matrix(columns))
        total = self.total + _sum(run.hashes)
        for found in self._hashes.find(columns.entity, run.keys):
            total -= _sum(found.hashes[found.places])
            self.count -= len(found.places)
        self.total = total % MODULUS
        self.count += len(run.hashes)
        self.changed += len(run.hashes)
        if len(run.hashes):
            self._pieces.append((columns.entity, run))

    def take_place(self) -> None:
        """The hashes are from now on those of the changed entities."""
        hashes = self._hashes
        for entity, run in self._pieces:
            new = _all_true(len(run.keys))
            for found in hashes.find(entity, run.keys):
                found.hashes[found.places] = run.hashes[found.numbers]
                new[found.numbers] = False
            hashes.join(entity, run.only(new))
        hashes.total, hashes.count = self.total, self.count


class _Run(NamedTuple):
    """Hashes of some entities of one type, a row of bytes for each, in the order of their keys."""

    keys: pa.Array
    hashes: npt.NDArray[np.uint8]

    def only(self, wanted: npt.NDArray[np.bool_]) -> _Run:
        return self if wanted.all() else _Run(self.keys.filter(wanted), self.hashes[wanted])


class _Found(NamedTuple):
    """Keys that a run has: which of the keys they are, the run's hashes, and their places in these."""

    numbers: npt.NDArray[np.integer[Any]]
    hashes: npt.NDArray[np.uint8]
    places: npt.NDArray[np.integer[Any]]


def _matrix(columns: EntityColumns) -> npt.NDArray[np.uint8]:
    import numpy as np

    # A bytearray, because what is made of bytes cannot be changed.
    return np.frombuffer(bytearray().join(hashes_of(columns)), np.uint8).reshape(-1, HASH_BYTES)


def _sum(hashes: npt.NDArray[np.uint8]) -> int:
    """Of the hashes as numbers: word by word, in C. Words of 32 bits cannot overflow before there are 2**32 hashes."""
    import numpy as np

    words = np.ascontiguousarray(hashes).view(">u4").sum(axis=0, dtype=np.uint64)
    total = 0
    for word in words.tolist():
        total = (total << _WORD_BITS) + word
    return total


def _together(runs: list[_Run]) -> _Run:
    import numpy as np
    import pyarrow as pa

    return _Run(pa.concat_arrays([run.keys for run in runs]), np.concatenate([run.hashes for run in runs]))


def _keys(columns: EntityColumns) -> pa.Array:
    import pyarrow as pa

    return pa.array(columns.keys, pa.string())


def _all_true(count: int) -> npt.NDArray[np.bool_]:
    import numpy as np

    return np.ones(count, dtype=bool)
