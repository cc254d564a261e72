"""An image's contents in encoded form: what a snapshot holds and what the digest is taken of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from engram.image.digest import as_text, digest_rows
from engram.image.timers import Timer


class EntityRow(NamedTuple):
    """One entity: its type's name and version, its key, and its state as JSON."""

    entity: str
    key: str
    version: int
    state: bytes


class SessionRow(NamedTuple):
    session: str
    sequence: int
    offset: int
    verdict: str
    body: str


class KeyRow(NamedTuple):
    idempotency_key: str
    fingerprint: str
    verdict: str
    body: str


class OriginRow(NamedTuple):
    """The last message seen from a partition."""

    partition: int
    offset: int
    index: int  # type: ignore[assignment]  # a field, not tuple.index
    number: int


class QuarantineRow(NamedTuple):
    offset: int
    index: int  # type: ignore[assignment]  # a field, not tuple.index
    command: str
    key: str
    error: str


class Memory(BaseModel):
    """What an image holds besides entities. `offset` is that of the next record to handle; with `epoch` and
    `app_version` it is what the digest leaves out: who owns a partition does not change what is in it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    offset: int
    epoch: int
    app_version: int
    time: int
    sessions: list[SessionRow]
    keys: list[KeyRow]
    origins: list[OriginRow]
    quarantine: list[QuarantineRow]
    quarantined: int
    timers: list[Timer] = []


def digest_of(entities: list[EntityRow], memory: Memory) -> str:
    """The digest of an image with these contents."""
    return as_text(digest_rows(_memory_rows(memory), digest_rows(map(_entity_cells, entities))))


def _entity_cells(row: EntityRow) -> tuple[bytes, ...]:
    return b"entity", row.entity.encode(), row.key.encode(), b"%d" % row.version, row.state


def _memory_rows(memory: Memory) -> Iterator[tuple[bytes, ...]]:
    yield b"time", b"%d" % memory.time
    yield b"quarantined", b"%d" % memory.quarantined
    # A window forgets its oldest key first, so the order of keys is state; that of the others is not.
    tables: list[tuple[str, list[tuple[object, ...]]]] = [
        ("session", list(memory.sessions)),
        ("key", [(i, *row) for i, row in enumerate(memory.keys)]),
        ("origin", list(memory.origins)),
        ("quarantine", [row[:4] for row in memory.quarantine]),
        ("timer", list(memory.timers)),
    ]
    for name, rows in tables:
        for row in rows:
            yield name.encode(), *(str(cell).encode() for cell in row)
