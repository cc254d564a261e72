"""Snapshots as parts and a manifest, in any storage.

    APP/partition-0003/000000000001042-9f2c55d1.json         the manifest, written last
    APP/partition-0003/000000000001042-9f2c55d1/entities.parquet
    APP/partition-0003/000000000001042-9f2c55d1/memory.json

A snapshot's entities are in its own folder and in those of the snapshots that it goes on from: its manifest names them
all, in order.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import structlog

from engram.errors import Corrupt, EngramError, Misuse, Unavailable
from engram.image.contents import digest_of, rows_of
from engram.snapshots.base import Contents, Loaded
from engram.snapshots.manifest import Manifest, PartEntry
from engram.snapshots.parts import ENTITIES, MEMORY, Parts
from engram.snapshots.retention import ASIDE, MANIFEST, is_ours, superfluous, unnamed
from engram.snapshots.serializer import SERIALIZERS, Serializers
from engram.snapshots.storage import Storage

KEEP = 3
# A base is written anew when this many parts go on from it, or when they are as large as it is.
_MOST_PARTS = 16
_PARTITION = re.compile(r"partition-(\d{4,})")

_logger = structlog.get_logger()
T = TypeVar("T")


def new_mark() -> str:
    """Something that no other file of this name has."""
    return secrets.token_hex(4)


class PartedSnapshots:
    """See `engram.snapshots.base.SnapshotStore`. Keeps the last `keep` and every savepoint.

    What is published was read back before: its own parts from storage, with their checksums, and the digest if it has
    one; those that it goes on from when this process wrote or loaded them, and otherwise now. So what retention
    removes, a newer snapshot that is good makes useless.

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
        new_mark: Callable[[], str] = new_mark,
    ) -> None:
        self.place = storage.place
        self._storage = storage
        self._copy = copy
        self._app = app
        self._keep = keep
        self._serializers = serializers
        self._new_mark = new_mark
        self._parts = Parts(storage, copy)

    def publish(self, partition: int, contents: Contents, *, created: int) -> Manifest:
        folder = _folder(partition)
        name = f"{contents.memory.offset:015}-{self._new_mark()}"
        path = f"{folder}/{name}{MANIFEST}"
        try:
            manifest = self._write_parts(folder, name, contents, partition, created)
            self._storage.write(path, manifest.encode())
            if self._storage.read(path) != manifest.encode():
                raise Corrupt("its manifest is not as it was written")
        except EngramError as problem:
            self._give_up(folder, name)
            if isinstance(problem, Unavailable):
                said = f"A snapshot of partition {partition} could not be written to {self.place}: {problem}"
                raise Unavailable(said) from problem
            raise
        self._parts.write_copy(path, manifest.encode())
        try:
            self._retire(folder, manifest)
        except Unavailable as problem:
            _logger.warning("snapshots_not_retired", partition=partition, problem=str(problem))
        return manifest

    def newest(self, partition: int) -> Loaded | None:
        folder = _folder(partition)
        storage, names = self._nearby(lambda storage: (storage, _published(storage, folder)))
        for name in names:
            try:
                return self._load(partition, _manifest(storage, folder, name))
            except Corrupt as problem:
                aside = f"{folder}/{name}.damaged"
                with suppress(Unavailable):
                    storage.move(f"{folder}/{name}{MANIFEST}", aside)
                _logger.error("snapshot_damaged", partition=partition, set_aside=aside, problem=str(problem))
        return None

    def manifests(self, partition: int) -> list[Manifest]:
        return [*self._nearby(lambda storage: _manifests(storage, _folder(partition))).values()]

    def partitions(self) -> list[int]:
        found = map(_PARTITION.fullmatch, self._nearby(lambda storage: storage.names("")))
        return sorted(int(match[1]) for match in found if match)

    def read(self, manifest: Manifest) -> Loaded:
        return self._load(manifest.partition, manifest)

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

    def _write_parts(self, folder: str, name: str, contents: Contents, partition: int, created: int) -> Manifest:
        """Writes them, reads them back, and gives their manifest."""
        writing = self._serializers.writing
        before = [] if contents.base is None else contents.base.entity_parts
        data, rows = writing.encode(contents.columns), contents.changed
        if before and (contents.savepoint or _is_due(before, len(data))):
            older = [(part, self._parts.read(folder, part)) for part in before]
            data, rows = self._serializers.merge(older, data)
            before = []
            if contents.savepoint:
                contents = contents._replace(columns=writing.decode(data), base=None)
            if rows != contents.total:
                raise Corrupt(f"it would have {rows:,} entities, and the image has {contents.total:,}")
        for part in before:
            self._parts.verify(folder, part)
        memory = self._parts.write(
            folder, f"{name}/{MEMORY}", "memory", writing.encode_memory(contents.memory), form=writing.form
        )
        entities = self._parts.write(folder, f"{name}/{ENTITIES}", "entities", data, form=writing.form, rows=rows)
        manifest = contents.manifest(self._app, partition, created=created, parts=[*before, entities, memory])
        self._read_back(folder, manifest)
        return manifest

    def _read_back(self, folder: str, manifest: Manifest) -> None:
        *_, entities, memory = manifest.parts
        if manifest.digest:
            self._contents_of(manifest, lambda part: self._parts.read_back(folder, part))
        else:
            self._parts.read_back(folder, entities)
            self._parts.read_back(folder, memory)

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

    def _load(self, partition: int, manifest: Manifest) -> Loaded:
        if (manifest.app, manifest.partition) != (self._app, partition):
            raise Corrupt(f"it is of app {manifest.app}, partition {manifest.partition}")
        return self._contents_of(manifest, lambda part: self._parts.read(_folder(partition), part))

    def _contents_of(self, manifest: Manifest, read: Callable[[PartEntry], bytes]) -> Loaded:
        *entities, of_memory = _ordered(manifest)
        columns = [c for part in entities for c in self._serializers.of(part).decode(read(part))]
        memory = self._serializers.of(of_memory).decode_memory(read(of_memory))
        loaded = Loaded(manifest, columns, memory)
        if memory.offset != manifest.offset:
            raise Corrupt(f"its contents are of record {memory.offset}, the manifest says {manifest.offset}")
        if manifest.digest and digest_of(rows_of(columns), memory) != manifest.digest:
            raise Corrupt(f"its contents do not have the digest {manifest.digest}")
        return loaded


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


def _is_due(before: list[PartEntry], size: int) -> bool:
    """Whether it is time for a new base."""
    base, *increments = before
    return len(before) >= _MOST_PARTS or sum(part.size for part in increments) + size >= base.size


def _ordered(manifest: Manifest) -> list[PartEntry]:
    """Its parts: entities from the oldest to its own, then its own memory. Raises `Corrupt` for any others."""
    parts, own = manifest.parts, manifest.name
    kinds = [part.kind for part in parts]
    offsets = [part.name[:15] for part in parts]
    if kinds != ["entities"] * (len(parts) - 1) + ["memory"] or len(parts) < 2:
        raise Corrupt(f"its parts are {', '.join(kinds) or 'none'}, not entities and then memory")
    if offsets != sorted(offsets) or not parts[-2].name.startswith(f"{own}/"):
        raise Corrupt("its parts are not in their order")
    return parts
