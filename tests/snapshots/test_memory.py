"""Snapshots in memory."""

from __future__ import annotations

from engram.snapshots.memory import MemorySnapshots
from engram.testing import SnapshotConformance


class TestMemorySnapshots(SnapshotConformance):
    def make(self, tmp_path, app):
        return MemorySnapshots(app)

    def reopen(self, store, tmp_path, app):
        return store
