"""A snapshot's manifest: what it is of, and what its parts must look like."""

from __future__ import annotations

import hashlib
from itertools import groupby
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from engram.errors import Corrupt

FORMAT = 2


class PartEntry(BaseModel):
    """One file of a snapshot, by its checksum. `name` is its path within the partition's folder; `form` that of the
    serializer which wrote it, and empty in manifests that were written before forms had names."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    kind: Literal["entities", "memory"]
    size: int
    sha256: str
    rows: int = 0
    form: str = ""


class Manifest(BaseModel):
    """Written last: a snapshot without it does not exist.

    `offset` is that of the first record that is not in the snapshot. Its parts with entities are those of a base, and
    then of what had changed since: later rows take the place of earlier ones. The parts of one folder were written
    together, and have an entity once.
    `digest` is the image's. It is empty in those that were written before every snapshot had it.
    `savepoint` is its name if it was asked for by one: such a snapshot is whole, and kept until somebody removes it.
    `pause_ms` is the longest time for which commands had to wait for it, `background_ms` how long it was written.
    `seal` is a checksum of all the rest.
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
    changed: int
    created: int
    parts: list[PartEntry]
    savepoint: str = ""
    pause_ms: float = 0.0
    background_ms: float = 0.0
    seal: str = ""

    @property
    def name(self) -> str:
        """Of its own folder, and of the manifest's file: the offset, and something that no other has."""
        return self.parts[-1].name.partition("/")[0] if self.parts else ""

    @property
    def folders(self) -> set[str]:
        """Its own, and those of the snapshots that it goes on from."""
        return {part.name.partition("/")[0] for part in self.parts}

    @property
    def entity_parts(self) -> list[PartEntry]:
        return [part for part in self.parts if part.kind == "entities"]

    @property
    def steps(self) -> list[list[PartEntry]]:
        """Its parts with entities: those of the base, and those of each change since."""
        return [list(parts) for _, parts in groupby(self.entity_parts, lambda part: part.name.partition("/")[0])]

    @property
    def written_bytes(self) -> int:
        """What was written for this snapshot: what it goes on from was there already."""
        return sum(part.size for part in self.parts if part.name.startswith(f"{self.name}/"))

    def sealed(self) -> Self:
        return self.model_copy(update={"seal": self._sum()})

    def encode(self) -> bytes:
        return self.model_dump_json(indent=2).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises `Corrupt` for what is not a manifest, or not as it was written."""
        try:
            manifest = cls.model_validate_json(data)
        except ValidationError as problem:
            raise Corrupt(f"its manifest cannot be read: {problem.errors()[0]['msg']}") from None
        if manifest.format != FORMAT:
            raise Corrupt(f"its manifest has format {manifest.format}; this Engram reads format {FORMAT}")
        if manifest.seal != manifest.sealed().seal:
            raise Corrupt("its manifest does not match its seal")
        return manifest

    def _sum(self) -> str:
        # A field that came later is not in the sum while it says nothing: older manifests stay readable.
        nameless = {number: {"form"} for number, part in enumerate(self.parts) if not part.form}
        later: dict[str, Any] = {"parts": nameless} if nameless else {}
        later |= {name: True for name in ("savepoint", "pause_ms", "background_ms") if not getattr(self, name)}
        return hashlib.sha256(self.model_dump_json(exclude={"seal": True, **later}).encode()).hexdigest()
