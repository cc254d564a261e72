"""The contract of a snapshot store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol, TypeVar

from engram.clock import Stopwatch
from engram.image.contents import EntityColumns, EntityRow, Memory, rows_of
from engram.snapshots.manifest import Manifest, PartEntry

T = TypeVar("T")

_FREED_AT_ONCE = 5_000


class Contents(NamedTuple):
    """What is to be published: entities, all or those that have changed since `base`, and the rest of the image.

    `columns` may come bit by bit, each entity once; then `expected` says how many there will be. `total` is how many
    entities the image has. `savepoint` names one that is to be kept, and to stand alone. `pause_ms` tells, at the end,
    for how long commands had to wait for it; `handed_over` is the moment by `stopwatch` from which on its writing
    counts.
    """

    columns: Iterable[EntityColumns]
    memory: Memory
    total: int
    base: Manifest | None = None
    savepoint: str = ""
    pause_ms: Callable[[], float] = float
    handed_over: float | None = None
    expected: int | None = None
    stopwatch: Stopwatch = time.perf_counter

    @property
    def changed(self) -> int:
        """How many entities are in it."""
        return sum(len(columns.keys) for columns in self.columns) if self.expected is None else self.expected

    @property
    def entities(self) -> list[EntityRow]:
        """One by one, if they are all here."""
        return rows_of(self.columns)

    def manifest(
        self, app: str, partition: int, *, created: int, parts: list[PartEntry], digest: str, changed: int
    ) -> Manifest:
        """The manifest of a snapshot with these contents."""
        return Manifest(
            app=app,
            app_version=self.memory.app_version,
            partition=partition,
            offset=self.memory.offset,
            epoch=self.memory.epoch,
            digest=digest,
            entities=self.total,
            changed=changed,
            created=created,
            parts=parts,
            savepoint=self.savepoint,
            pause_ms=round(self.pause_ms(), 3),
            background_ms=0.0 if self.handed_over is None else self._milliseconds_since(self.handed_over),
        ).sealed()

    def _milliseconds_since(self, moment: float) -> float:
        return round((self.stopwatch() - moment) * 1000, 3)


def release(columns: EntityColumns) -> None:
    """Lets go of entities that are written, bit by bit: to free a million objects at once would hold up every
    thread."""
    for values in (columns.keys, columns.states, columns.rows):
        while isinstance(values, list) and values:
            del values[-_FREED_AT_ONCE:]


class Loaded(NamedTuple):
    """A snapshot that is read.

    `columns` may be larger than memory: they are read as they are gone through, each entity once, and can be gone
    through again. Going through them raises `Corrupt` at the latest at their end when anything is not as it was
    published.
    """

    manifest: Manifest
    columns: Iterable[EntityColumns]
    memory: Memory

    @property
    def contents(self) -> Contents:
        """What would be published to get it; all of it is read."""
        return Contents(list(self.columns), self.memory, self.manifest.entities)


class SnapshotStore(Protocol):
    """Where an app's snapshots are kept, by partition. Methods raise `Unavailable` when storage fails."""

    def publish(self, partition: int, contents: Contents, *, created: int) -> Manifest:
        """Writes a snapshot and returns when it is durable. It is seen whole or not at all.

        Contents with a base are written as what has changed; a savepoint is written whole in any case. Raises `Corrupt`
        when the base is not there any more, or what was written is not what is read back: then everything must be
        written. Older snapshots beyond the store's number to keep are removed afterwards, savepoints never. The
        contents' columns are the caller's: none is kept once the next one is asked for.
        """

    def newest(self, partition: int) -> Loaded | None:
        """The newest snapshot that is whole: all of it was read. A damaged one is set aside, loudly, and the one before
        it taken."""

    def restore(self, partition: int, take: Callable[[Loaded], T]) -> T | None:
        """What `take` makes of the newest snapshot that is whole; None if there is none.

        `take` goes through the entities once. If that shows that the snapshot is damaged, it is set aside, loudly, what
        was made of it is dropped, and `take` is called with the one before. Any other exception is the caller's.
        """

    def manifests(self, partition: int) -> list[Manifest]:
        """Of all published snapshots of the partition, newest first."""

    def partitions(self) -> list[int]:
        """Those that have, or had, snapshots."""

    def read(self, manifest: Manifest) -> Loaded:
        """The snapshot of a manifest. Raises `Corrupt` when it is not whole, now or as its entities are gone through,
        and sets nothing aside."""

    def savepoint(self, partition: int, name: str) -> Manifest | None:
        """The savepoint of that name; the newest, if there are several."""

    def remove(self, manifest: Manifest) -> None:
        """Removes a savepoint, and what no other snapshot needs of it. Raises `Misuse` for what is no savepoint."""

    def set_aside(self, manifest: Manifest) -> None:
        """Takes a snapshot out of sight, as if it had never been published. Nothing of it is deleted, now or later."""
