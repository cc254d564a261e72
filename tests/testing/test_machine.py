"""Machines made out of apps: right apps pass, wrong ones are found and told as programs that run."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from engram.testing import machine
from engram.testing.machine import AppMachine
from engram.testing.program import Program
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from tests.testing import broken

ROOT = Path(__file__).parents[2]
FEW = settings(max_examples=5, stateful_step_count=12)
SHRUNK = settings(max_examples=100, stateful_step_count=8, database=None, report_multiple_bugs=False)
# To shrink takes the most time, and one test of it is enough. The first failure ends it: a fault that one history in
# fifty shows was not met by a hundred of them one time in eight.
AS_FOUND = settings(SHRUNK, max_examples=2000, phases=[Phase.generate])

TestLibrary = machine(broken.app, broken.Put, broken.Lend, keys=broken.KEYS).TestCase
TestLibrary.settings = FEW


def failure(found: type[AppMachine], how: settings = AS_FOUND) -> tuple[str, str]:
    """What a machine raises, and the program that it tells with it."""
    with pytest.raises(Exception) as raised:
        run_state_machine_as_test(found, settings=how)
    told = "As a program that fails in the same way:\n\n"
    (program,) = (note.removeprefix(told) for note in raised.value.__notes__ if note.startswith(told))
    return str(raised.value), program


def run(program: str) -> str:
    """What a program prints to stderr when it is run by itself, which must fail."""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, f"it does not fail:\n{program}\n{done.stdout}"
    return done.stderr


def test_an_invariant_that_does_not_hold_is_found_and_told_as_a_program():
    """The program, run by itself, fails in the same way."""
    invariants = [broken.no_book_is_there_and_lent_to_itself]
    problem, program = failure(machine(broken.app, broken.Put, broken.Lend, keys=broken.KEYS, invariants=invariants))

    assert "has lent a book to itself" in problem
    assert "no_book_is_there_and_lent_to_itself(s)" in program
    assert problem.splitlines()[0] in run(program)


def test_a_reply_that_is_not_the_models_is_found():
    """The program says what the model had expected."""
    problem, program = failure(machine(broken.app, broken.Put, keys=broken.KEYS, model=broken.Forgetful))

    assert "was rejected (is_there" in problem
    assert ".replies(" in program
    assert "was rejected (is_there" in run(program)


def test_an_upgrade_that_loses_something_is_found():
    """The next version of the app is started from the snapshots of this one, and must decode them."""
    found = machine(broken.app, broken.Put, broken.Lend, keys=broken.KEYS, upgrade=broken.upgraded)
    problem, program = failure(found)

    assert "cannot be read by version 2" in problem
    assert "s.check_upgrade(new_app)" in program
    assert "cannot be read by version 2" in run(program)


def test_state_beside_the_image_is_found():
    """A handler that keeps something in its module comes to something else when replayed; one command shows it."""
    broken.SEEN.clear()
    problem, program = failure(machine(broken.ledgers, broken.Note), SHRUNK)

    assert "is not deterministic" in problem
    assert program.count("\ns.") == 1
    assert "is not deterministic" in run(program)


# Programs


class Colour(Enum):
    RED = "red"


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.dates()
    | st.timedeltas()
    | st.datetimes(timezones=st.just(UTC) | st.just(timezone(timedelta(hours=2))))
    | st.decimals(allow_nan=False)
    | st.uuids()
    | st.just(Colour.RED)
    | st.builds(broken.Put)
    | st.builds(broken.Shelf, key=st.just("a"), books=st.lists(st.text(), max_size=2)),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.lists(inner).map(tuple),
    max_leaves=6,
)


@given(values)
def test_values_are_written_as_python_reads_them(value: Any):
    """Whatever may be in a command or an answer comes back from the program's text."""
    text = Program(broken.app).text(value)
    names = {"datetime": datetime, "date": date, "timedelta": timedelta, "timezone": timezone, "UTC": UTC}
    names |= {"Decimal": Decimal, "UUID": UUID, "Colour": Colour, "Put": broken.Put, "Shelf": broken.Shelf}
    back = eval(text, names)  # that is the claim
    assert (back, type(back)) == (value, type(value))


def test_what_cannot_be_imported_is_said():
    """A class of a function cannot be imported: the program says so."""

    class Local(Enum):
        ONE = 1

    program = Program(broken.app)
    program.add(program.text(Local.ONE))
    assert "# test_what_cannot_be_imported_is_said.<locals>.Local of" in str(program)
    assert str(program).endswith("Local.ONE")
    assert "from tests.testing.broken import app" in str(program)
