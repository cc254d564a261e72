"""The contract of a snapshot store."""

from __future__ import annotations

import time
from typing import NamedTuple, Protocol

from engram.clock import Stopwatch
from engram.image.contents import EntityColumns, EntityRow, Memory, digest_of, rows_of
from engram.snapshots.manifest import Manifest, PartEntry

_FREED_AT_ONCE = 5_000


class Contents(NamedTuple):
    """What is to be published: entities, all or those that have changed since `base`, and the rest of the image.

    `total` is how many entities the image has. `savepoint` names one that is to be kept, and to stand alone.
    `pause_ms` is for how long commands had to wait for it, `handed_over` the moment by `stopwatch` from which on its
    writing counts.
    """

    columns: list[EntityColumns]
    memory: Memory
    total: int
    base: Manifest | None = None
    savepoint: str = ""
    pause_ms: float = 0.0
    handed_over: float | None = None
    stopwatch: Stopwatch = time.perf_counter

    @property
    def changed(self) -> int:
        """How many entities are in it."""
        return sum(len(columns.keys) for columns in self.columns)

    @property
    def entities(self) -> list[EntityRow]:
        """One by one."""
        return rows_of(self.columns)

    def release(self) -> None:
        """Lets go of the entities once they are published, bit by bit: to free a million objects at once would hold up
        every thread."""
        for columns in self.columns:
            for values in (columns.keys, columns.states, columns.rows):
                while isinstance(values, list) and values:
                    del values[-_FREED_AT_ONCE:]

    def manifest(self, app: str, partition: int, *, created: int, parts: list[PartEntry]) -> Manifest:
        """The manifest of a snapshot with these contents."""
        return Manifest(
            app=app,
            app_version=self.memory.app_version,
            partition=partition,
            offset=self.memory.offset,
            epoch=self.memory.epoch,
            digest=digest_of(self.entities, self.memory) if self.base is None else "",
            entities=self.total,
            changed=self.changed,
            created=created,
            parts=parts,
            savepoint=self.savepoint,
            pause_ms=round(self.pause_ms, 3),
            background_ms=0.0 if self.handed_over is None else self._milliseconds_since(self.handed_over),
        ).sealed()

    def _milliseconds_since(self, moment: float) -> float:
        return round((self.stopwatch() - moment) * 1000, 3)


class Loaded(NamedTuple):
    """A snapshot that was read back whole: everything that can be checked was right. Of entities that are there
    several times, the last counts."""

    manifest: Manifest
    columns: list[EntityColumns]
    memory: Memory

    @property
    def contents(self) -> Contents:
        """What would be published to get it."""
        return Contents(self.columns, self.memory, self.manifest.entities)


class SnapshotStore(Protocol):
    """Where an app's snapshots are kept, by partition. Methods raise `Unavailable` when storage fails."""

    def publish(self, partition: int, contents: Contents, *, created: int) -> Manifest:
        """Writes a snapshot and returns when it is durable. It is seen whole or not at all.

        Contents with a base are written as what has changed; a savepoint is written whole in any case. Raises `Corrupt`
        when the base is not there any more, or what was written is not what is read back: then everything must be
        written. Older snapshots beyond the store's number to keep are removed afterwards, savepoints never. The
        contents' columns are the caller's, and may be emptied later.
        """

    def newest(self, partition: int) -> Loaded | None:
        """The newest snapshot that is whole. A damaged one is set aside, loudly, and the one before it taken."""

    def manifests(self, partition: int) -> list[Manifest]:
        """Of all published snapshots of the partition, newest first."""

    def partitions(self) -> list[int]:
        """Those that have, or had, snapshots."""

    def read(self, manifest: Manifest) -> Loaded:
        """The snapshot of a manifest. Raises `Corrupt` when it is not whole, and sets nothing aside."""

    def savepoint(self, partition: int, name: str) -> Manifest | None:
        """The savepoint of that name; the newest, if there are several."""

    def remove(self, manifest: Manifest) -> None:
        """Removes a savepoint, and what no other snapshot needs of it. Raises `Misuse` for what is no savepoint."""

    def set_aside(self, manifest: Manifest) -> None:
        """Takes a snapshot out of sight, as if it had never been published. Nothing of it is deleted, now or later."""
