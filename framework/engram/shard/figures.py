"""What a snapshot and a recovery cost: told in the logs, in a partition's status, and from there in the metrics."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from engram.snapshots.manifest import Manifest


class SnapshotFigures(BaseModel):
    """One snapshot: of which record, how many entities the image had and how many of them had changed, the bytes that
    were written, the longest time for which commands had to wait, how long it was written beside them, and when."""

    model_config = ConfigDict(frozen=True)

    offset: int
    entities: int
    changed: int
    bytes: int
    pause_ms: float
    background_ms: float
    created: int  # milliseconds since 1970: its age is told by whoever shows it


class RecoveryFigures(BaseModel):
    """One recovery: how long the snapshot was loaded, with how many entities, how many records after it were replayed,
    for how long, and how long all of it took. While a partition is replayed, its shard serves those that are ready."""

    model_config = ConfigDict(frozen=True)

    load_ms: float
    entities: int
    records: int
    replay_ms: float
    total_ms: float


def snapshot_figures(manifest: Manifest) -> SnapshotFigures:
    return SnapshotFigures(
        offset=manifest.offset,
        entities=manifest.entities,
        changed=manifest.changed,
        bytes=manifest.written_bytes,
        pause_ms=manifest.pause_ms,
        background_ms=manifest.background_ms,
        created=manifest.created,
    )
