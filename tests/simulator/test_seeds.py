"""Thousands of seeds, and every one that has ever failed."""

from __future__ import annotations

import hashlib
import importlib
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from engram.testing.simulator.checking import check_program, checked, counts_of, program_of
from engram.testing.simulator.simulate import simulate_seed
from engram.testing.simulator.world import World

from tests.simulator.bank import subject

BLOCK = 200
BLOCKS = range(0, 2000, BLOCK)
ROOT = Path(__file__).parents[2]
KEPT = sorted(path.stem for path in (ROOT / "tests" / "seeds").glob("*.py"))
# Each of these must happen: otherwise nothing is shown by so many seeds that pass.
FAULTS = [
    "crashes in an operation",
    "power losses, clean",
    "power losses, torn",
    "power losses, lost",
    "power losses, uneven",
    "two owners at once",
    "turns of an owner that was replaced",
    "appends refused",
    "appends unsure",
    "appends torn",
    "appends late",
    "operations cut off from the log",
    "operations cut off from the store",
    "full disks",
    "bits flipped",
    "clock jumps",
    "responses lost",
    "rescales",
    "upgrades",
    "answers",
]


def traced(world: World) -> str:
    """Everything that has happened, as one number."""
    records = [world.log.all_records(partition) for partition in range(world.setup.partitions)]
    files = [(path, world.disk.read(path)) for path in world.disk.files()]
    return hashlib.sha256(repr((records, world.said, files, counts_of(world))).encode()).hexdigest()


@pytest.mark.parametrize("first", BLOCKS)
def test_two_thousand_seeds_find_nothing(first: int):
    """Whatever is drawn, everything is as the model has it; and every kind of fault is among it."""
    counts: Counter[str] = Counter()
    for seed in range(first, first + BLOCK):
        counts += simulate_seed(subject, seed)

    assert [fault for fault in FAULTS if not counts[fault]] == []
    assert counts["commands acknowledged"] > 3 * BLOCK


@pytest.mark.parametrize("name", KEPT)
def test_a_seed_that_has_failed_passes(name: str):
    """What was found once is not found again."""
    kept = importlib.import_module(f"tests.seeds.{name}")
    check_program(kept.subject, kept.program)


@pytest.mark.parametrize("seed", range(30))
def test_a_run_is_a_function_of_its_seed(seed: int):
    """The same seed gives the same records, replies and files, to the byte."""
    program = program_of(subject, seed)
    assert traced(checked(subject, program)) == traced(checked(subject, program))


def test_a_run_is_the_same_in_another_process():
    """Also where Python's hashes are others: nothing depends on the order of a set."""
    of = range(20)
    code = f"""
from tests.simulator.bank import subject
from tests.simulator.test_seeds import checked, program_of, traced
for seed in {of}:
    print(traced(checked(subject, program_of(subject, seed))))
"""
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "4711"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split() == [traced(checked(subject, program_of(subject, seed))) for seed in of]
