"""What an image holds besides entities, for a partition that takes over from several others.

Rows of sessions and idempotency keys do not say which entities they were about: a new partition gets those of all old
ones that it can have keys of, and so knows more than it needs, never less.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import NamedTuple

from engram.image.contents import KeyRow, Memory, SessionRow
from engram.image.quarantine import QuarantineRow
from engram.image.timers import Timer
from engram.log.partitioner import partition_of
from engram.model.entity import EVERYWHERE
from engram.reshape.plan import Plan

# The place that a failed command had: its old partition, offset and index.
OldPlace = tuple[int, int, int]


class Reshaped(NamedTuple):
    """The memory of a new partition, and the indices that failed commands have there, by their old places."""

    memory: Memory
    failed: dict[OldPlace, int]


def reshape(plan: Plan, partition: int, memories: Mapping[int, Memory]) -> Reshaped:
    """The memory of a new partition, from those of its sources.

    Its time is that of the source which is furthest behind: what that has not handled comes before timers of later
    times. Messages are all handled or carried over, and positions begin anew: nothing is known of any origin.
    """
    failed: dict[OldPlace, int] = {}
    rows: list[QuarantineRow] = []
    unlisted = 0
    for old, memory in sorted(memories.items()):
        listed = [row for row in memory.quarantine if is_for(plan, old, row, partition)]
        for row in listed:
            failed[old, row.offset, row.index] = len(rows)
            rows.append(_moved(plan, old, row, len(rows)))
        if old % plan.to == partition:
            unlisted += memory.quarantined - sum(counts(plan, old, row) for row in memory.quarantine)
    return Reshaped(
        Memory(
            offset=plan.base + 1,
            epoch=plan.base,
            app_version=plan.version,
            time=min(memory.time for memory in memories.values()),
            sessions=_sessions(plan, memories),
            keys=_keys(memories),
            origins=[],
            quarantine=rows,
            quarantined=unlisted + len(rows),
            timers=[timer for old, memory in sorted(memories.items()) for timer in timers_for(plan, partition, memory)],
        ),
        failed,
    )


def home_of(plan: Plan, old: int, key: str | None) -> int:
    """The new partition of what is about a key; what is about none stays near where it was."""
    return old % plan.to if key is None else partition_of(key, plan.to)


def is_for(plan: Plan, old: int, row: QuarantineRow, partition: int) -> bool:
    """Whether a new partition gets this failed command. Of one that nobody could read the key is not known."""
    return counts(plan, old, row) and home_of(plan, old, row.key or None) == partition


def counts(plan: Plan, old: int, row: QuarantineRow) -> bool:
    """A broadcast that failed in one partition alone is of no concern any more: all get what its home has."""
    return row.key != EVERYWHERE or old == plan.home


def timers_for(plan: Plan, partition: int, memory: Memory) -> Iterator[Timer]:
    """Those of an old partition that a new one gets, as they are: entities hold their handles."""
    return (timer for timer in memory.timers if partition_of(timer.key, plan.to) == partition)


def _moved(plan: Plan, old: int, row: QuarantineRow, index: int) -> QuarantineRow:
    before = f"{old}:{row.offset}.{row.index}"
    return row._replace(offset=plan.base, index=index, error=f"{row.error} (was {before} before the repartition)")


def _sessions(plan: Plan, memories: Mapping[int, Memory]) -> list[SessionRow]:
    """Of a session that several partitions know, the latest command counts: it has one under way at a time.

    Offsets say only how long ago a session was active, so they are counted back from the end that all have in common.
    """
    latest: dict[str, SessionRow] = {}
    for memory in memories.values():
        back = plan.base - memory.offset
        for row in memory.sessions:
            known = latest.get(row.session)
            if known is None or known.sequence < row.sequence:
                latest[row.session] = row._replace(offset=max(0, row.offset + back))
    return [latest[session] for session in sorted(latest)]


def _keys(memories: Mapping[int, Memory]) -> list[KeyRow]:
    """All of them, those that each partition would forget first before the others."""
    newest_first = zip_longest(*(reversed(memory.keys) for _, memory in sorted(memories.items())))
    found: dict[str, KeyRow] = {}
    for rows in newest_first:
        for row in rows:
            if row is not None:
                found.setdefault(row.idempotency_key, row)
    return list(reversed(found.values()))
