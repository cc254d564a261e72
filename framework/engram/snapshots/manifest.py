"""A snapshot's manifest: what it is of, and what its parts must look like."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

FORMAT = 1


class PartEntry(BaseModel):
    """One file of a snapshot, by its checksum."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    size: int
    sha256: str


class Manifest(BaseModel):
    """Written last: a snapshot without it does not exist.

    `offset` is that of the first record that is not in the snapshot.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = FORMAT
    app: str
    app_version: int
    partition: int
    offset: int
    epoch: int
    digest: str
    entities: int
    created: int
    parts: list[PartEntry]
