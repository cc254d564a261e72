"""The plan of a repartition: what is to come from where. See docs/decisions/0023-repartition.md."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from math import gcd

from engram.errors import Misuse
from engram.log.base import Draft, Log, Making
from engram.log.open import make_log, open_log
from engram.log.partitioner import partition_of
from engram.model.entity import EVERYWHERE
from engram.snapshots.manifest import Manifest
from engram.snapshots.open import open_store
from engram.snapshots.parted import PartedSnapshots

_MOST_PARTITIONS = 1 << 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A log and its snapshots, by URL."""

    log: str
    snapshots: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """From one log to another. Travels to Spark's tasks, which open what it names.

    `manifests` are those of the old partitions, None for one in which nothing was ever handled; `ends` is where their
    logs ended when the plan was made.
    """

    reference: str
    app: str
    source: Place
    target: Place
    partitions: int
    to: int
    manifests: tuple[Manifest | None, ...]
    ends: tuple[int, ...]
    version: int

    @property
    def base(self) -> int:
        """Every position of the new log is after every position of the old one, whatever their partitions are."""
        return max(self.ends)

    @property
    def id(self) -> str:
        """The same for the same work: whoever runs it again finds what was done."""
        of = [(m.name or str(m.offset), m.seal) if m is not None else ("", "") for m in self.manifests]
        text = repr((self.app, self.partitions, self.to, of, self.ends, self.source.log))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def savepoint(self) -> str:
        """What the new snapshots are called."""
        return f"repartitioned-{self.id}"

    @property
    def making(self) -> Making:
        return Making(self.id, self.base)

    @property
    def home(self) -> int:
        """The old partition in which broadcasts are handled first: all others follow it."""
        return partition_of(EVERYWHERE, self.partitions)

    def sources(self, partition: int) -> list[int]:
        """The old partitions that a new one can have keys of: the two are rests of the same hash."""
        common = gcd(self.partitions, self.to)
        return [old for old in range(self.partitions) if (old - partition) % common == 0]

    def offset(self, old: int) -> int:
        """The first record of an old partition that is not in its snapshot."""
        manifest = self.manifests[old]
        return 0 if manifest is None else manifest.offset

    def source_log(self) -> Log:
        return open_log(self.source.log, self.app, partitions=self.partitions)

    def source_store(self) -> PartedSnapshots:
        return open_store(self.source.snapshots, self.app, create=False)

    def target_log(self) -> Draft:
        return make_log(self.target.log, self.app, partitions=self.to, making=self.making)

    def target_store(self) -> PartedSnapshots:
        return open_store(self.target.snapshots, self.app)


def check_count(partitions: int, to: int) -> None:
    """Raises `Misuse` for a number of partitions that is none, or that the log has already."""
    if not 1 <= to <= _MOST_PARTITIONS:
        raise Misuse(f"A log has 1 to {_MOST_PARTITIONS:,} partitions, not {to}: choose another number.")
    if to == partitions:
        raise Misuse(f"The log has {to} partitions already: choose another number, or leave it as it is.")


def check_target(plan: Plan) -> None:
    """Raises `Misuse` when something else is where the new log or its snapshots are to be."""
    if plan.target.log == plan.source.log or plan.target.snapshots == plan.source.snapshots:
        raise Misuse("The new log and its snapshots need places of their own: name others than those of the old one.")
    foreign = [f"partition {p}" for p, savepoint in _savepoints(plan) if savepoint != plan.savepoint]
    if foreign:
        raise Misuse(
            f"There are snapshots of {plan.app} in {plan.target.snapshots} already, such as of {foreign[0]}: choose "
            "another place for the new ones, or remove these."
        )


def _savepoints(plan: Plan) -> Iterator[tuple[int, str]]:
    store = plan.target_store()
    for partition in store.partitions():
        yield from ((partition, manifest.savepoint) for manifest in store.manifests(partition))


def check_still(plan: Plan) -> None:
    """Raises `Misuse` when the old log has come further than the plan knows."""
    with closing(plan.source_log()) as log:
        now: Sequence[int] = [log.end(partition) for partition in range(log.partitions)]
    more = sum(now) - sum(plan.ends)
    if more:
        raise Misuse(
            f"{more:,} records have come into {plan.source.log} meanwhile: stop whoever writes to it, remove "
            f"{plan.target.log} and {plan.target.snapshots}, and begin again."
        )
