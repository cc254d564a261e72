"""The contract of a snapshot store."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from engram.image.contents import EntityRow, Memory, digest_of
from engram.snapshots.manifest import Manifest, PartEntry


class Contents(NamedTuple):
    """An image as a store takes and gives it."""

    entities: list[EntityRow]
    memory: Memory

    def manifest(self, app: str, partition: int, *, created: int, parts: list[PartEntry]) -> Manifest:
        """The manifest of a snapshot with these contents."""
        return Manifest(
            app=app,
            app_version=self.memory.app_version,
            partition=partition,
            offset=self.memory.offset,
            epoch=self.memory.epoch,
            digest=digest_of(self.entities, self.memory),
            entities=len(self.entities),
            created=created,
            parts=parts,
        )


class Loaded(NamedTuple):
    """A snapshot that was read back whole: every checksum and the digest were right."""

    manifest: Manifest
    contents: Contents


class SnapshotStore(Protocol):
    """Where an app's snapshots are kept, by partition. Methods raise `Unavailable` when storage fails."""

    def publish(self, partition: int, contents: Contents, *, created: int) -> Manifest:
        """Writes a snapshot and returns when it is durable. It is seen whole or not at all.

        Older snapshots beyond the store's number to keep are removed afterwards.
        """

    def newest(self, partition: int) -> Loaded | None:
        """The newest snapshot that is whole. A damaged one is set aside, loudly, and the one before it taken."""

    def manifests(self, partition: int) -> list[Manifest]:
        """Of all published snapshots of the partition, newest first."""
