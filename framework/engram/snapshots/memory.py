"""Snapshots in memory: for tests, and for apps on a log in memory."""

from __future__ import annotations

from engram.snapshots.base import Contents, Loaded
from engram.snapshots.manifest import Manifest


class MemorySnapshots:
    """See `engram.snapshots.base.SnapshotStore`. Keeps all."""

    def __init__(self, app: str) -> None:
        self._app = app
        self._snapshots: dict[int, list[Loaded]] = {}

    def publish(self, partition: int, contents: Contents, *, created: int) -> Manifest:
        manifest = contents.manifest(self._app, partition, created=created, parts=[])
        self._snapshots.setdefault(partition, []).append(Loaded(manifest, contents))
        return manifest

    def newest(self, partition: int) -> Loaded | None:
        return max(self._snapshots.get(partition, []), key=lambda s: s.manifest.offset, default=None)

    def manifests(self, partition: int) -> list[Manifest]:
        kept = (snapshot.manifest for snapshot in self._snapshots.get(partition, []))
        return sorted(kept, key=lambda manifest: manifest.offset, reverse=True)
