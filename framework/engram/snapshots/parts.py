"""Parts of snapshots in a storage: written with their checksums, and read against them."""

from __future__ import annotations

import hashlib
import re
from typing import Literal

import structlog

from engram.errors import Corrupt, Unavailable
from engram.snapshots.manifest import PartEntry
from engram.snapshots.storage import Storage

MEMORY = "memory.json"
_NAME = re.compile(rf"\d{{15}}-[0-9a-f]{{8}}/(entities(-\d{{4,9}})?\.parquet|{re.escape(MEMORY)})")

_logger = structlog.get_logger()


def entities_name(number: int) -> str:
    """Of the first, second and any other part with entities of a snapshot."""
    return f"entities-{number:04}.parquet" if number else "entities.parquet"


class Parts:
    """Of one app. `copy` is a storage nearer by: what is written goes there too, and what is there and right is read
    from there. Nothing depends on it: when it fails, that is told, and all goes on without it."""

    def __init__(self, storage: Storage, copy: Storage | None = None) -> None:
        self._storage = storage
        self._copy = copy
        self._verified: set[tuple[str, str, str]] = set()

    def write(
        self, folder: str, name: str, kind: Literal["entities", "memory"], data: bytes, *, form: str, rows: int = 0
    ) -> PartEntry:
        self._storage.write(f"{folder}/{name}", data)
        self.write_copy(f"{folder}/{name}", data)
        return PartEntry(name=name, kind=kind, size=len(data), sha256=_sum(data), rows=rows, form=form)

    def write_copy(self, path: str, data: bytes) -> None:
        if self._copy is not None:
            try:
                self._copy.write(path, data)
            except Unavailable as problem:
                _logger.warning("snapshot_copy_failed", path=path, place=self._copy.place, problem=str(problem))

    def check_there(self, folder: str, part: PartEntry) -> None:
        """Raises `Corrupt` for a part that is not there, or not of its size."""
        if self._storage.size(_path(folder, part)) != part.size:
            raise Corrupt(f"its part {part.name} is not there, or not whole")

    def read(self, folder: str, part: PartEntry) -> bytes:
        """From the copy if it is right, otherwise from storage. Raises `Corrupt` when neither has it."""
        if self._copy is not None:
            try:
                return _checked(self._copy, folder, part)
            except (Corrupt, Unavailable):
                data = self.read_back(folder, part)
                self.write_copy(_path(folder, part), data)
                return data
        return self.read_back(folder, part)

    def read_back(self, folder: str, part: PartEntry) -> bytes:
        """From storage itself."""
        data = _checked(self._storage, folder, part)
        self._verified.add((folder, part.name, part.sha256))
        return data

    def verify(self, folder: str, part: PartEntry) -> None:
        """Once read back and right, a part is only looked for from then on: reading all of a base again for each
        snapshot that goes on from it would cost as much as writing all of it."""
        if (folder, part.name, part.sha256) in self._verified:
            self.check_there(folder, part)
        else:
            self.read_back(folder, part)

    def forget(self, folder: str, names: set[str]) -> None:
        """These folders are gone."""
        self._verified = {v for v in self._verified if v[0] != folder or v[1].partition("/")[0] not in names}


def _path(folder: str, part: PartEntry) -> str:
    if not _NAME.fullmatch(part.name):
        raise Corrupt(f"it names a part outside its folder: {part.name}")
    return f"{folder}/{part.name}"


def _checked(storage: Storage, folder: str, part: PartEntry) -> bytes:
    path = _path(folder, part)
    # Looked at first: a file that has grown without bounds is not read into memory.
    if storage.size(path) != part.size:
        raise Corrupt(f"its part {part.name} is not there, or not whole")
    data = storage.read(path)
    if _sum(data) != part.sha256:
        raise Corrupt(f"its part {part.name} does not match its checksum")
    return data


def _sum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
