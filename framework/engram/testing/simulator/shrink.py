"""A failing program made short: delta debugging over its steps, then over its setup."""

from __future__ import annotations

import re
from collections.abc import Iterator

from engram.testing.simulator.checking import check_program
from engram.testing.simulator.steps import Program, Setup, Step
from engram.testing.simulator.subject import Subject

# Runs that may be spent on it: some ten seconds.
_MOST_RUNS = 800


def problem_of(subject: Subject, program: Program) -> Exception | None:
    """What is wrong with it, if anything."""
    try:
        check_program(subject, program)
    except Exception as problem:  # noqa: BLE001 - production may raise anything where it should not
        return problem
    return None


def shrink(subject: Subject, program: Program, problem: Exception) -> Program:
    """A program with the same kind of problem, from which nothing can be left out, as far as was tried."""
    return _Shrinking(subject, _kind(problem)).shortest(program)


class _Shrinking:
    def __init__(self, subject: Subject, kind: str) -> None:
        self._subject = subject
        self._kind = kind
        self._runs = _MOST_RUNS

    def shortest(self, program: Program) -> Program:
        before = None
        while before != program and self._runs > 0:
            before = program
            program = self._fewer_steps(program)
            for setup in _simpler(program.setup):
                if self._fails(program._replace(setup=setup)):
                    program = program._replace(setup=setup)
        return program

    def _fewer_steps(self, program: Program) -> Program:
        size = max(1, len(program.steps) // 2)
        while size:
            place = 0
            while place < len(program.steps):
                shorter: list[Step] = [*program.steps[:place], *program.steps[place + size :]]
                if self._fails(program._replace(steps=shorter)):
                    program = program._replace(steps=shorter)
                else:
                    place += size
            size //= 2
        return program

    def _fails(self, program: Program) -> bool:
        self._runs -= 1
        if self._runs < 0:
            return False
        problem = problem_of(self._subject, program)
        return problem is not None and _kind(problem) == self._kind


def _simpler(setup: Setup) -> Iterator[Setup]:
    """The same with one thing as usual."""
    plain = Setup(partitions=1, shards=1, clients=1)
    for name in setup._fields:
        if name not in ("crash_at", "loss") and getattr(setup, name) != getattr(plain, name):
            yield setup._replace(**{name: getattr(plain, name)})


def _kind(problem: Exception) -> str:
    """What it is about, without what is different in every run."""
    return f"{type(problem).__name__} {re.sub(r'[0-9]+', '', str(problem).partition(':')[0])[:60]}"
