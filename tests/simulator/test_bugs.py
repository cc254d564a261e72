"""Planted bugs: a simulator that finds nothing is worth nothing."""

from __future__ import annotations

import pytest
from engram.testing.simulator.checking import check_program, program_of
from engram.testing.simulator.report import program_text
from engram.testing.simulator.shrink import problem_of, shrink

from tests.simulator.bank import subject
from tests.simulator.bugs import BUGS, Bug, forget_a_dedupe_entry

SEEDS = 2000
# Steps that are left when nothing can be left out.
SHORT = 8


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_planted_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch):
    """Within two thousand seeds, most within a hundred."""
    bug.plant(monkeypatch)
    assert any(problem_of(subject, program_of(subject, seed)) is not None for seed in range(SEEDS)), bug.told


def test_there_are_more_than_a_dozen():
    """Of log, store, snapshots, recovery and handling."""
    assert len(BUGS) >= 12


def test_what_is_found_is_made_short_and_printed_as_a_program():
    """The program is a file that fails as the seed did while the bug is there, and passes once it is not."""
    with pytest.MonkeyPatch.context() as patch:
        forget_a_dedupe_entry(patch)
        seed, problem = next(
            (seed, found)
            for seed in range(SEEDS)
            if (found := problem_of(subject, program_of(subject, seed))) is not None
        )
        short = shrink(subject, program_of(subject, seed), problem)
        text = program_text(subject, short, told=f"Seed {seed}: {problem}")
        printed: dict[str, object] = {"__name__": "printed"}
        exec(text, printed)
        found = problem_of(printed["subject"], printed["program"])
        assert type(found) is type(problem)
        assert len(short.steps) <= SHORT
    check_program(printed["subject"], printed["program"])
