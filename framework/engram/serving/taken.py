"""Snapshots that were asked for, as they look from outside: the forms of the API, for the gateway and the client."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from engram.shard.requests import SnapshotTaken


class SnapshotsTaken(BaseModel):
    """Snapshots that were taken on request, one of each partition that was asked for; a savepoint if it has a name."""

    model_config = ConfigDict(frozen=True)

    savepoint: str
    snapshots: list[SnapshotTaken]


class LastSnapshot(BaseModel):
    """The newest snapshot of a partition that has ended: it has everything that was handled."""

    model_config = ConfigDict(frozen=True)

    partition: int
    offset: int
    entities: int


class Ended(BaseModel):
    """An app has stopped cleanly, with a savepoint of every partition."""

    model_config = ConfigDict(frozen=True)

    savepoint: str
    app_version: int
    snapshots: list[LastSnapshot]
