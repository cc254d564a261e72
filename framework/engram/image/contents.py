"""An image's contents in encoded form: what a snapshot holds and what the digest is taken of."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from engram.codec.record import Origin
from engram.image.dedupe import Seen
from engram.image.digest import as_text, digest_rows, hash_of
from engram.image.outcome import Outcome
from engram.image.quarantine import QuarantineRow
from engram.image.timers import Timer
from engram.model.version import Version


class EntityRow(NamedTuple):
    """One entity: its type's name and version, its key, and its state as JSON."""

    entity: str
    key: str
    version: Version
    state: bytes


class EntityColumns(NamedTuple):
    """Many entities of one type and version, as columns: what a snapshot is made from and read into. (A million rows as
    tuples would cost the garbage collector more than encoding them.)

    `rows` has what read models have of each entity, if they have anything: see `ReadModels.encoded`.
    """

    entity: str
    version: Version
    keys: list[str]
    states: list[bytes]
    rows: Sequence[bytes | None] = ()


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


class Copied(NamedTuple):
    """The same as the image holds it, in copies that take no time to make; `memory` takes some."""

    offset: int
    epoch: int
    app_version: int
    time: int
    sessions: dict[str, Seen]
    keys: dict[str, tuple[str, Outcome]]
    origins: dict[int, Origin]
    quarantine: list[QuarantineRow]
    quarantined: int
    timers: list[Timer]

    def memory(self) -> Memory:
        return Memory.model_construct(
            offset=self.offset,
            epoch=self.epoch,
            app_version=self.app_version,
            time=self.time,
            sessions=[
                SessionRow(name, sequence, offset, outcome.verdict.value, outcome.body.decode())
                for name, (sequence, outcome, offset) in self.sessions.items()
            ],
            keys=[
                KeyRow(key, mark, outcome.verdict.value, outcome.body.decode())
                for key, (mark, outcome) in self.keys.items()
            ],
            origins=[OriginRow(p, *origin) for p, origin in sorted(self.origins.items())],
            quarantine=self.quarantine,
            quarantined=self.quarantined,
            timers=self.timers,
        )


def rows_of(columns: Iterable[EntityColumns]) -> list[EntityRow]:
    """The same as rows, each entity once: of those that are there several times, the last counts."""
    newest = {
        (name, key): EntityRow(name, key, version, state)
        for name, version, keys, states, _ in columns
        for key, state in zip(keys, states, strict=True)
    }
    return list(newest.values())


def without(columns: EntityColumns, keys: Container[str]) -> EntityColumns:
    """The same without these keys."""
    name, version, every, states, rows = columns
    kept = [place for place, key in enumerate(every) if key not in keys]
    if len(kept) == len(every):
        return columns
    of_kept = [rows[place] for place in kept] if rows else ()
    return EntityColumns(name, version, [every[place] for place in kept], [states[place] for place in kept], of_kept)


def columns_of(rows: Iterable[EntityRow]) -> list[EntityColumns]:
    """The same as columns, of every type and version."""
    found: dict[tuple[str, Version], EntityColumns] = {}
    for name, key, version, state in rows:
        columns = found.setdefault((name, version), EntityColumns(name, version, [], []))
        columns.keys.append(key)
        columns.states.append(state)
    return list(found.values())


def digest_of(entities: Iterable[EntityRow], memory: Memory) -> str:
    """The digest of an image with these contents."""
    return digest_with(digest_rows(map(entity_cells, entities)), memory)


def digest_with(entities: int, memory: Memory) -> str:
    """The same, if the hashes of all entities are added up already."""
    return as_text(digest_rows(_memory_rows(memory), entities))


def hashes_of(columns: EntityColumns) -> list[bytes]:
    """What each entity adds to the digest. In one expression, because there may be millions of them."""
    name, version, keys, states, _ = columns
    before_key = _Sizes(b"".join(map(_sized, (b"entity", name.encode()))))
    before_state = _Sizes(_sized(str(version).encode()))
    return [
        hash_of(b"".join((before_key[len(key)], key, before_state[len(state)], state)))
        for key, state in zip(map(str.encode, keys), states, strict=True)
    ]


class _Sizes(dict[int, bytes]):
    """A text and a size, for each size that was asked for."""

    def __init__(self, text: bytes) -> None:
        super().__init__()
        self._text = text

    def __missing__(self, size: int) -> bytes:
        made = self[size] = b"%s%d:" % (self._text, size)
        return made


def _sized(cell: bytes) -> bytes:
    return b"%d:%s" % (len(cell), cell)


def entity_cells(row: EntityRow) -> tuple[bytes, ...]:
    """What counts of an entity for a digest."""
    return b"entity", row.entity.encode(), row.key.encode(), str(row.version).encode(), row.state


def _memory_rows(memory: Memory) -> Iterator[tuple[bytes, ...]]:
    yield b"time", b"%d" % memory.time
    yield b"quarantined", b"%d" % memory.quarantined
    # A window forgets its oldest key first, so the order of keys is state; that of the others is not.
    tables: list[tuple[str, list[tuple[object, ...]]]] = [
        ("session", list(memory.sessions)),
        ("key", [(i, *row) for i, row in enumerate(memory.keys)]),
        ("origin", list(memory.origins)),
        ("quarantine", [row.digested for row in memory.quarantine]),
        ("timer", list(memory.timers)),
    ]
    for name, rows in tables:
        for row in rows:
            yield name.encode(), *(str(cell).encode() for cell in row)
