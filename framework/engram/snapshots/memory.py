"""Snapshots in memory: for tests, and for apps on a log in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from engram.errors import Corrupt, Misuse
from engram.image.contents import digest_of, rows_of, without
from engram.snapshots.base import Contents, Loaded
from engram.snapshots.manifest import Manifest

T = TypeVar("T")


class MemorySnapshots:
    """See `engram.snapshots.base.SnapshotStore`. Keeps all."""

    def __init__(self, app: str) -> None:
        self._app = app
        self._snapshots: dict[int, list[Loaded]] = {}
        self.aside: list[Loaded] = []

    def publish(self, partition: int, contents: Contents, *, created: int) -> Manifest:
        kept = self._snapshots.setdefault(partition, [])
        columns = [c._replace(keys=c.keys[:], states=c.states[:], rows=c.rows[:]) for c in contents.columns]
        changed = sum(len(c.keys) for c in columns)
        if contents.base is not None:
            base = next((loaded for loaded in kept if loaded.manifest == contents.base), None)
            if base is None:
                raise Corrupt("the snapshot that this one goes on from is not there any more")
            newer = {c.entity: {key for of in columns if of.entity == c.entity for key in of.keys} for c in columns}
            columns = [*(without(c, newer.get(c.entity, ())) for c in base.columns), *columns]
        digest = digest_of(rows_of(columns), contents.memory)
        manifest = contents.manifest(self._app, partition, created=created, parts=[], digest=digest, changed=changed)
        kept.append(Loaded(manifest, columns, contents.memory))
        return manifest

    def newest(self, partition: int) -> Loaded | None:
        return max(self._snapshots.get(partition, []), key=lambda s: s.manifest.offset, default=None)

    def restore(self, partition: int, take: Callable[[Loaded], T]) -> T | None:
        loaded = self.newest(partition)
        return None if loaded is None else take(loaded)

    def manifests(self, partition: int) -> list[Manifest]:
        kept = (snapshot.manifest for snapshot in self._snapshots.get(partition, []))
        return sorted(kept, key=lambda manifest: manifest.offset, reverse=True)

    def partitions(self) -> list[int]:
        return sorted(self._snapshots)

    def read(self, manifest: Manifest) -> Loaded:
        for loaded in self._snapshots.get(manifest.partition, []):
            if loaded.manifest == manifest:
                return loaded
        raise Corrupt(f"the snapshot at record {manifest.offset} is not there")

    def savepoint(self, partition: int, name: str) -> Manifest | None:
        return next((manifest for manifest in self.manifests(partition) if manifest.savepoint == name), None)

    def remove(self, manifest: Manifest) -> None:
        if not manifest.savepoint:
            raise Misuse(f"The snapshot at record {manifest.offset} is no savepoint.")
        kept = self._snapshots.get(manifest.partition, [])
        kept[:] = [loaded for loaded in kept if loaded.manifest != manifest]

    def set_aside(self, manifest: Manifest) -> None:
        kept = self._snapshots.get(manifest.partition, [])
        aside = [loaded for loaded in kept if loaded.manifest == manifest]
        self.aside += aside
        kept[:] = [loaded for loaded in kept if loaded not in aside]
