"""Snapshots as parts and a manifest, in any storage.

    APP/partition-0003/000000000001042-9f2c55d1.json         the manifest, written last
    APP/partition-0003/000000000001042-9f2c55d1/entities.parquet
    APP/partition-0003/000000000001042-9f2c55d1/entities-0001.parquet    if there are more than fit into one
    APP/partition-0003/000000000001042-9f2c55d1/memory.json

A snapshot's entities are in its own folder and in those of the snapshots that it goes on from: its manifest names them
all, in order. Nothing is ever held whole: parts are of bounded size, and written, merged and read one after the other.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import structlog

from engram.errors import Corrupt, Misuse, Unavailable
from engram.image.contents import digest_with
from engram.snapshots.base import Contents, Loaded
from engram.snapshots.hashes import Hashes
from engram.snapshots.manifest import Manifest
from engram.snapshots.parts import Parts
from engram.snapshots.reading import Reading, ordered
from engram.snapshots.retention import ASIDE, MANIFEST, is_ours, superfluous, unnamed
from engram.snapshots.serializer import SERIALIZERS, Serializers
from engram.snapshots.slices import SLICE_BYTES
from engram.snapshots.storage import Storage
from engram.snapshots.writing import Writing

if TYPE_CHECKING:
    import pyarrow as pa

KEEP = 3
_PARTITION = re.compile(r"partition-(\d{4,})")

_logger = structlog.get_logger()
T = TypeVar("T")


def new_mark() -> str:
    """Something that no other file of this name has."""
    return secrets.token_hex(4)


class PartedSnapshots:
    """See `engram.snapshots.base.SnapshotStore`. Keeps the last `keep` and every savepoint.

    What is published was read back before: its own parts from storage, with their checksums, and when all of it was
    written, with its digest; those that it goes on from when this process wrote or loaded them, and otherwise now. So
    what retention removes, a newer snapshot that is good makes useless.

    With a `copy` nearer by, parts are read from there as far as they are right; and when storage is away, it says
    what snapshots there are.
    """

    def __init__(
        self,
        storage: Storage,
        app: str,
        *,
        keep: int = KEEP,
        copy: Storage | None = None,
        serializers: Serializers = SERIALIZERS,
        slice_bytes: int = SLICE_BYTES,
        new_mark: Callable[[], str] = new_mark,
    ) -> None:
        self.place = storage.place
        self._storage = storage
        self._copy = copy
        self._app = app
        self._keep = keep
        self._serializers = serializers
        self._slice_bytes = slice_bytes
        self._new_mark = new_mark
        self._parts = Parts(storage, copy)
        # Of the newest snapshot of each partition that was loaded or written here, by its name.
        self._hashes: dict[int, tuple[str, Hashes]] = {}

    def publish(self, partition: int, contents: Contents, *, created: int) -> Manifest:
        folder = _folder(partition)
        name = f"{contents.memory.offset:015}-{self._new_mark()}"
        path = f"{folder}/{name}{MANIFEST}"
        try:
            hashes = self._hashes_of(partition, contents.base)
            writing = Writing(
                self._parts, self._serializers, folder, name, hashes=hashes, slice_bytes=self._slice_bytes
            )
            manifest = self._write(writing, contents, partition, created)
            self._storage.write(path, manifest.encode())
            if self._storage.read(path) != manifest.encode():
                raise Corrupt("its manifest is not as it was written")
        except BaseException as problem:
            self._give_up(folder, name)
            if isinstance(problem, Unavailable):
                said = f"A snapshot of partition {partition} could not be written to {self.place}: {problem}"
                raise Unavailable(said) from problem
            raise
        writing.change.take_place()
        self._hashes[partition] = name, hashes
        self._parts.write_copy(path, manifest.encode())
        try:
            self._retire(folder, manifest)
        except Unavailable as problem:
            _logger.warning("snapshots_not_retired", partition=partition, problem=str(problem))
        return manifest

    def newest(self, partition: int) -> Loaded | None:
        return self.restore(partition, lambda loaded: loaded)

    def restore(self, partition: int, take: Callable[[Loaded], T]) -> T | None:
        folder = _folder(partition)
        storage, names = self._nearby(lambda storage: (storage, _published(storage, folder)))
        if names:
            # Whoever wrote the newest may have been killed before it was durable; from here on it is built upon.
            storage.settle(folder)
        for name in names:
            reading: Reading | None = None
            try:
                manifest = _manifest(storage, folder, name)
                reading = self._reading(partition, manifest, keep_hashes=True)
                taken = take(reading.loaded)
                reading.finish()
            except Corrupt as problem:
                if reading is not None and reading.problem is None:
                    raise  # whoever takes it cannot use it: that is no damage
                aside = f"{folder}/{name}.damaged"
                with suppress(Unavailable):
                    storage.move(f"{folder}/{name}{MANIFEST}", aside)
                _logger.error("snapshot_damaged", partition=partition, set_aside=aside, problem=str(problem))
            else:
                if reading.hashes is not None:
                    self._hashes[partition] = name, reading.hashes
                return taken
        return None

    def manifests(self, partition: int) -> list[Manifest]:
        return [*self._nearby(lambda storage: _manifests(storage, _folder(partition))).values()]

    def partitions(self) -> list[int]:
        found = map(_PARTITION.fullmatch, self._nearby(lambda storage: storage.names("")))
        return sorted(int(match[1]) for match in found if match)

    def read(self, manifest: Manifest) -> Loaded:
        return self._reading(manifest.partition, manifest).loaded

    def entities(self, manifest: Manifest) -> pa.Table:
        """The entities of a snapshot as columns of text: entity, key, version, state, rows. For who reads many and
        needs nothing else of it: checksums are looked at, the digest is not taken. Raises `Corrupt` as `read` does."""
        self._check_of(manifest.partition, manifest)
        *entities, _ = ordered(manifest)
        folder = _folder(manifest.partition)
        return self._serializers.table([(part, self._parts.read(folder, part)) for part in entities])

    def savepoint(self, partition: int, name: str) -> Manifest | None:
        return next((manifest for manifest in self.manifests(partition) if manifest.savepoint == name), None)

    def remove(self, manifest: Manifest) -> None:
        if not manifest.savepoint:
            raise Misuse(f"The snapshot at record {manifest.offset} is no savepoint: retention removes it in its time.")
        folder = _folder(manifest.partition)
        left = {name: one for name, one in _manifests(self._storage, folder).items() if name != manifest.name}
        self._remove(folder, [f"{manifest.name}{MANIFEST}"])
        # Only its own folder: others that nobody names may be another owner's, with the manifest still to come.
        self._remove(folder, unnamed([manifest.name], left, [manifest.name], f"{manifest.name}~"))

    def set_aside(self, manifest: Manifest) -> None:
        path = f"{_folder(manifest.partition)}/{manifest.name}"
        self._storage.move(f"{path}{MANIFEST}", f"{path}{ASIDE}")
        if self._copy is not None:
            with suppress(Unavailable):
                self._copy.remove(f"{path}{MANIFEST}")

    # Writing

    def _write(self, writing: Writing, contents: Contents, partition: int, created: int) -> Manifest:
        """Writes all parts, and gives their manifest."""
        parts = writing.write(contents)
        change = writing.change
        digest = digest_with(change.total, contents.memory)
        return contents.manifest(
            self._app, partition, created=created, parts=parts, digest=digest, changed=change.changed
        )

    def _hashes_of(self, partition: int, base: Manifest | None) -> Hashes:
        """Those of the base, from memory if this store has loaded or written it; they are about to change."""
        if base is None:
            return Hashes()
        name, hashes = self._hashes.get(partition, ("", None))
        if hashes is not None and name == base.name:
            return hashes
        reading = self._reading(partition, base, keep_hashes=True)
        reading.finish()
        assert reading.hashes is not None
        return reading.hashes

    def _give_up(self, folder: str, name: str) -> None:
        """Removes what was written of a snapshot, unless its manifest is there after all."""
        with suppress(Unavailable):
            if self._storage.size(f"{folder}/{name}{MANIFEST}") is None:
                self._remove(folder, [name])

    def _retire(self, folder: str, verified: Manifest) -> None:
        names = self._storage.names(folder)
        gone = superfluous(names, _manifests(self._storage, folder), verified, keep=self._keep)
        self._remove(folder, gone)
        if self._copy is not None:
            kept = {*names} - {*gone}
            stale = [name for name in self._copy.names(folder) if is_ours(name) and name not in kept]
            for name in stale:
                self._copy.remove(f"{folder}/{name}")

    def _remove(self, folder: str, names: list[str]) -> None:
        for name in names:
            self._storage.remove(f"{folder}/{name}")
            if self._copy is not None:
                with suppress(Unavailable):
                    self._copy.remove(f"{folder}/{name}")
        self._parts.forget(folder, {*names})

    # Reading

    def _nearby(self, ask: Callable[[Storage], T]) -> T:
        """What storage says; what the copy says when storage is away."""
        try:
            return ask(self._storage)
        except Unavailable as problem:
            if self._copy is None:
                raise
            _logger.warning("snapshots_away", place=self.place, instead=self._copy.place, problem=str(problem))
            return ask(self._copy)

    def _reading(self, partition: int, manifest: Manifest, *, keep_hashes: bool = False) -> Reading:
        self._check_of(partition, manifest)
        read = partial(self._parts.read, _folder(partition))
        return Reading(manifest, read, self._serializers, keep_hashes=keep_hashes)

    def _check_of(self, partition: int, manifest: Manifest) -> None:
        if (manifest.app, manifest.partition) != (self._app, partition):
            raise Corrupt(f"it is of app {manifest.app}, partition {manifest.partition}")


def _folder(partition: int) -> str:
    return f"partition-{partition:04}"


def _published(storage: Storage, folder: str) -> list[str]:
    """The names of the snapshots, newest first."""
    names = (name for name in storage.names(folder) if name.endswith(MANIFEST) and not name.startswith("."))
    return sorted((name.removesuffix(MANIFEST) for name in names), reverse=True)


def _manifest(storage: Storage, folder: str, name: str) -> Manifest:
    manifest = Manifest.decode(storage.read(f"{folder}/{name}{MANIFEST}"))
    if manifest.name != name:
        raise Corrupt(f"its manifest is that of {manifest.name or 'no snapshot'}")
    return manifest


def _manifests(storage: Storage, folder: str) -> dict[str, Manifest]:
    """By name, newest first."""
    found = {}
    for name in _published(storage, folder):
        with suppress(Corrupt):  # retired meanwhile, or damaged: `newest` sets it aside
            found[name] = _manifest(storage, folder, name)
    return found
