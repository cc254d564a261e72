"""What of an old partition goes to a new one: counted and digested on both sides, so that the two can be compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from engram.codec.record import Kind
from engram.image.contents import EntityRow, Memory, entity_cells
from engram.image.digest import as_text, digest_rows
from engram.reshape.carried import Batch

_MODULUS = 1 << 256


class Share(NamedTuple):
    """Entities, timers, failed commands, and unhandled commands and messages; `digest` is of all these but the failed
    commands, which get new places, as `engram.image.digest` takes it: shares of several partitions add up."""

    entities: int = 0
    timers: int = 0
    failed: int = 0
    unhandled: int = 0
    digest: int = 0

    def plus(self, other: Share) -> Share:
        entities, timers, failed, carried, digest = (sum(pair) for pair in zip(self, other, strict=True))
        return Share(entities, timers, failed, carried, digest % _MODULUS)

    def __str__(self) -> str:
        return (
            f"{self.entities:,} entities, {self.timers:,} timers, {self.failed:,} failed and {self.unhandled:,} "
            f"unhandled commands, digest {as_text(self.digest)[:16]}"
        )


# Says whether something with a key belongs to the share.
Wanted = Callable[[str | None], bool]


def share_of(
    rows: Iterable[EntityRow], memory: Memory, batches: Iterable[Batch], *, wanted: Wanted, failed: int
) -> Share:
    """The share of everything with a wanted key. `failed` commands are counted elsewhere: some are left behind."""
    entities = [row for row in rows if wanted(row.key)]
    timers = [timer for timer in memory.timers if wanted(timer.key)]
    carried = [cells for batch in batches for cells in _cells(batch, wanted)]
    digest = digest_rows(map(entity_cells, entities))
    digest = digest_rows(((b"timer", *(str(cell).encode() for cell in timer)) for timer in timers), digest)
    return Share(len(entities), len(timers), failed, len(carried), digest_rows(carried, digest))


def shared_share(entities: Iterable[EntityRow]) -> Share:
    """Of what every partition has."""
    found = list(entities)
    return Share(entities=len(found), digest=digest_rows(map(entity_cells, found)))


def _cells(batch: Batch, wanted: Wanted) -> Iterator[tuple[bytes, ...]]:
    if batch.kind is Kind.PLAIN and wanted(batch.key):
        yield b"plain", batch.plain
    for command in batch.carried:
        if wanted(command.key):
            yield b"carried", command.name.encode(), str(command.version).encode(), command.key.encode(), command.body
