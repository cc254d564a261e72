"""The three steps of a repartition: an old partition is surveyed, a new one is made, and verified against the surveys.

Each is the work of one Spark task. Each can be done again, also after a crash in its middle, and comes to the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from engram.clock import system_clock
from engram.codec.codec import Codec
from engram.errors import Corrupt
from engram.image.contents import EntityColumns, Memory, rows_of
from engram.log.base import READ_BYTES, Draft, Entry, Log
from engram.log.scan import scan
from engram.model.app import App
from engram.model.entity import Shared
from engram.model.version import Version
from engram.reshape.carried import entries, unhandled
from engram.reshape.memory import home_of, is_for, reshape
from engram.reshape.plan import Plan
from engram.reshape.share import Share, share_of, shared_share
from engram.shard.reference import resolve_app
from engram.snapshots.base import Contents, SnapshotStore

_ENTRIES_AT_ONCE = 200

Tell = Callable[[int, int], None]
_State = tuple[Version, bytes, bytes | None]
_NOTHING = Memory(
    offset=0, epoch=-1, app_version=0, time=0, sessions=[], keys=[], origins=[], quarantine=[], quarantined=0
)


class Survey(NamedTuple):
    """What an old partition has for each new one; `shared` is what all get, of the home of broadcasts."""

    shares: dict[int, Share]
    shared: Share


@contextmanager
def opened(plan: Plan) -> Iterator[Reshaping]:
    """The plan's logs and stores."""
    log, target = plan.source_log(), plan.target_log()
    try:
        yield Reshaping(plan, resolve_app(plan.reference), (log, plan.source_store()), (target, plan.target_store()))
    finally:
        log.close()
        target.close()


class Reshaping:
    """The old log and its snapshots, which are only read, and the new ones."""

    def __init__(
        self, plan: Plan, app: App, source: tuple[Log, SnapshotStore], target: tuple[Draft, SnapshotStore]
    ) -> None:
        self._plan = plan
        self._codec = Codec(app)
        self._shared = {name for name, cls in app.entities.items() if issubclass(cls, Shared)}
        self._log, self._store = source
        self._new_log, self._new_store = target

    def survey(self, old: int, tell: Tell) -> Survey:
        """Reads an old partition's snapshot and what comes after it. Raises `Corrupt` when it is not whole, or has what
        this app does not know."""
        plan = self._plan
        columns, memory = self._find(old)
        for each in columns:
            self._codec.check_entity(each.entity, each.version)
        batches = list(unhandled(self._log, old, memory, plan.ends[old]))
        rows = rows_of(columns)
        own = [row for row in rows if row.entity not in self._shared]
        everywhere = [row for row in rows if row.entity in self._shared] if old == plan.home else []
        targets = [new for new in range(plan.to) if old in plan.sources(new)]
        shares = {}
        for done, new in enumerate(targets, 1):
            failed = sum(is_for(plan, old, row, new) for row in memory.quarantine)
            shares[new] = share_of(own, memory, batches, wanted=partial(_is_in, plan, old, new), failed=failed)
            tell(done, len(targets))
        return Survey(shares, shared_share(everywhere))

    def make(self, new: int, tell: Tell) -> int:
        """Makes a new partition: its snapshot, and its first records, of which it gives the number."""
        plan, sources = self._plan, self._plan.sources(new)
        states: dict[tuple[str, str], _State] = {}
        memories = {}
        steps = sorted({*sources, plan.home})
        for done, old in enumerate(steps, 1):
            columns, memory = self._find(old)
            if old in sources:
                memories[old] = memory
                own = (each for each in columns if each.entity not in self._shared)
                _take(states, own, partial(_is_in, plan, old, new))
            if old == plan.home:
                _take(states, (each for each in columns if each.entity in self._shared), lambda _key: True)
            tell(done, len(steps) + 1)
        reshaped = reshape(plan, new, memories)
        if self._new_store.savepoint(new, plan.savepoint) is None:
            contents = Contents(_columns(states), reshaped.memory, len(states), savepoint=plan.savepoint)
            self._new_store.publish(new, contents, created=system_clock())
        self._new_log.begin(new, tell)
        batches = {old: unhandled(self._log, old, memory, plan.ends[old]) for old, memory in memories.items()}
        latest = max(memory.time for memory in memories.values())
        return _bring(self._new_log, new, plan.base, entries(plan, new, reshaped, batches, time=latest))

    def verify(self, new: int, expected: Share, records: int) -> Share:
        """Reads a new partition back. Raises `Corrupt` when it has something else than the surveys say."""
        plan, log = self._plan, self._new_log
        manifest = self._new_store.savepoint(new, plan.savepoint)
        if manifest is None:
            raise Corrupt(f"The snapshot of the new partition {new} is gone: remove the rest too, and begin again.")
        loaded = self._new_store.read(manifest)
        start, end = log.start(new), log.end(new)
        if (start, end) != (plan.base, plan.base + records):
            raise Corrupt(
                f"The new partition {new} has records {start} to {end - 1}, and should have {plan.base} to "
                f"{plan.base + records - 1}: somebody else writes to it. Remove it, and begin again."
            )
        rows, memory = rows_of(loaded.columns), loaded.memory
        batches = unhandled(log, new, memory, end)
        found = share_of(rows, memory, batches, wanted=lambda _key: True, failed=len(memory.quarantine))
        if found != expected:
            raise Corrupt(f"The new partition {new} has {found}; but of the old ones it should have {expected}.")
        return found

    def _find(self, old: int) -> tuple[Iterable[EntityColumns], Memory]:
        manifest = self._plan.manifests[old]
        if manifest is None:
            return [], _NOTHING
        loaded = self._store.read(manifest)
        return loaded.columns, loaded.memory


def _is_in(plan: Plan, old: int, new: int, key: str | None) -> bool:
    return home_of(plan, old, key) == new


def _take(
    states: dict[tuple[str, str], _State], columns: Iterable[EntityColumns], wanted: Callable[[str], bool]
) -> None:
    """Later ones take the place of earlier: a snapshot's parts go on from each other."""
    for name, version, keys, found, rows in columns:
        for key, state, read in zip(keys, found, rows or [None] * len(keys), strict=True):
            if wanted(key):
                states[name, key] = version, state, read


def _columns(states: dict[tuple[str, str], _State]) -> list[EntityColumns]:
    found: dict[tuple[str, Version], tuple[list[str], list[bytes], list[bytes | None]]] = {}
    for (name, key), (version, state, read) in states.items():
        keys, encoded, rows = found.setdefault((name, version), ([], [], []))
        keys.append(key)
        encoded.append(state)
        rows.append(read)
    return [EntityColumns(name, version, *columns) for (name, version), columns in found.items()]


def _bring(target: Draft, partition: int, base: int, wanted: Iterator[Entry]) -> int:
    """Appends what is not there yet of a partition's records; how many there are then. What is there was brought by
    somebody who had the same plan, and was interrupted."""
    end = target.end(partition)
    there = scan(target, partition, base, end)
    number = size = 0
    waiting: list[Entry] = []
    for number, entry in enumerate(wanted, 1):
        if base + number <= end:
            record = next(there)
            if (record.kind, record.time, record.payload) != entry[1:4]:
                raise Corrupt(
                    f"Record {record.offset} of the new partition {partition} is not what was to be there: somebody "
                    "else writes to it. Remove the new log and its snapshots, and begin again."
                )
            continue
        waiting.append(entry)
        size += len(entry.payload)
        if len(waiting) >= _ENTRIES_AT_ONCE or size > READ_BYTES:
            target.append(waiting)
            waiting, size = [], 0
    if waiting:
        target.append(waiting)
    return number
