"""Very many seeds, in processes side by side."""

from __future__ import annotations

import importlib
import multiprocessing
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from engram.errors import Misuse
from engram.testing.simulator.checking import check_program, program_of
from engram.testing.simulator.report import program_text
from engram.testing.simulator.shrink import problem_of, shrink
from engram.testing.simulator.subject import Subject

# Seeds that a process takes at a time: a second or so, which is how often progress is told.
_AT_ONCE = 100


class Failure(NamedTuple):
    """A seed, what is wrong with it, and a short program that does the same."""

    seed: int
    told: str
    program: str


class Batch(NamedTuple):
    """Some seeds that were simulated."""

    seeds: int
    counts: Counter[str]
    failures: list[Failure]


def simulate_many(
    reference: str,
    *,
    start: int,
    count: int,
    processes: int,
    tell: Callable[[str], None],
    found: Callable[[Failure], None],
) -> tuple[Counter[str], float]:
    """Seeds from `start` on, for the `Subject` at `MODULE:NAME`: what has happened, and how many seconds it took.

    `tell` hears of progress, `found` of what is wrong, as it comes. Ctrl-C ends it early: `seeds` among the counts says
    how many there were.
    """
    began = time.monotonic()
    counts: Counter[str] = Counter()
    batches = [
        (reference, first, min(_AT_ONCE, start + count - first)) for first in range(start, start + count, _AT_ONCE)
    ]
    with suppress(KeyboardInterrupt):
        for batch in _batches(batches, processes):
            counts += batch.counts
            counts["seeds"] += batch.seeds
            for failure in batch.failures:
                counts["failures"] += 1
                found(failure)
            rate = counts["seeds"] / (time.monotonic() - began)
            tell(f"{counts['seeds']:,} of {count:,} seeds, {rate:,.0f}/s, {counts['failures']:,} failed")
    return counts, time.monotonic() - began


def _batches(batches: list[tuple[str, int, int]], processes: int) -> Iterator[Batch]:
    if processes == 1:
        yield from map(_simulate_batch, batches)
        return
    with multiprocessing.get_context("spawn").Pool(processes, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        yield from pool.imap_unordered(_simulate_batch, batches)


def _simulate_batch(batch: tuple[str, int, int]) -> Batch:
    reference, first, count = batch
    subject = subject_at(reference)
    counts: Counter[str] = Counter()
    failures = []
    for seed in range(first, first + count):
        try:
            counts += check_program(subject, program_of(subject, seed))
        except Exception:  # noqa: BLE001 - whatever it is, it is told with its program
            failures.append(failure_of(subject, seed))
    return Batch(count, counts, failures)


def failure_of(subject: Subject, seed: int) -> Failure:
    """A seed that fails, made short."""
    program = program_of(subject, seed)
    problem = problem_of(subject, program)
    if problem is None:
        return Failure(seed, "It failed once, and does not fail again: something depends on more than the seed.", "")
    told = f"Seed {seed}: {type(problem).__name__}: {problem}"
    return Failure(seed, told, program_text(subject, shrink(subject, program, problem), told=told))


def subject_at(reference: str) -> Subject:
    """The subject that a module holds under a name."""
    module, _, name = reference.partition(":")
    found = getattr(importlib.import_module(module), name, None)
    if not isinstance(found, Subject):
        raise Misuse(f"{reference!r} names no Subject: write MODULE:NAME.")
    return found
