"""`engram repartition` as Spark jobs: survey the old partitions, make the new ones, verify them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

from engram.reshape.partition import Survey, opened
from engram.reshape.plan import Plan, check_still, check_target
from engram.reshape.share import Share
from engram.spark.batch import Run, run_batch
from engram.spark.progress import Progress, Tell
from engram.spark.spark import Spark

# What hears of a step of the job.
Told = Callable[[str, int], Callable[[Progress], None]]


class Made(NamedTuple):
    """A new partition: its records, and what it has."""

    partition: int
    records: int
    share: Share


def repartition(spark: Spark, plan: Plan, *, told: Told, run: Run = run_batch) -> list[Made]:
    """Makes the new log and its snapshots, and opens it to everybody once all of it is verified.

    Can be run again with the same plan, whatever has become of it the last time. The old log is only read. Raises
    `Misuse` when something else is in the new one's place, or the old one is written to, and `Corrupt` when a snapshot
    is not whole or the new partitions do not have what the old ones had.
    """
    check_target(plan)
    with closing(plan.target_log()) as target:  # made here, once, and not by all tasks together
        surveys = run(spark, range(plan.partitions), _Survey(plan), on_progress=told("surveying", plan.partitions))
        expected = _expected(plan, surveys)
        records = run(spark, range(plan.to), _Make(plan), on_progress=told("making", plan.to))
        pieces = [(new, expected[new], records[new]) for new in range(plan.to)]
        found = run(spark, pieces, _Verify(plan), on_progress=told("verifying", plan.to))
        check_still(plan)
        target.finish()
    return [Made(new, records[new], share) for new, share in enumerate(found)]


def _expected(plan: Plan, surveys: list[Survey]) -> list[Share]:
    everywhere = reduce(Share.plus, (found.shared for found in surveys))
    return [
        reduce(Share.plus, (found.shares[new] for found in surveys if new in found.shares), everywhere)
        for new in range(plan.to)
    ]


@dataclass(frozen=True, slots=True)
class _Survey:
    plan: Plan

    def __call__(self, old: int, tell: Tell) -> Survey:
        with opened(self.plan) as reshaping:
            return reshaping.survey(old, tell)


@dataclass(frozen=True, slots=True)
class _Make:
    plan: Plan

    def __call__(self, new: int, tell: Tell) -> int:
        with opened(self.plan) as reshaping:
            return reshaping.make(new, tell)


@dataclass(frozen=True, slots=True)
class _Verify:
    plan: Plan

    def __call__(self, piece: tuple[int, Share, int], tell: Tell) -> Share:
        with opened(self.plan) as reshaping:
            found = reshaping.verify(*piece)
        tell(1, 1)
        return found
