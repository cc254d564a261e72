"""`simulate`: an app under faults of every kind, seed by seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from engram.errors import Misuse
from engram.model.app import App
from engram.model.command import Command
from engram.testing.simulator.checking import check_program, program_of
from engram.testing.simulator.report import program_text
from engram.testing.simulator.shrink import shrink
from engram.testing.simulator.subject import Invariant, Subject
from engram.testing.strategies import commands as commands_of

# Of a pool of commands, made once: Hypothesis takes its time.
_POOL = 300
_AT_ONCE = 10


def simulate(
    app: App,
    *,
    seeds: Iterable[int] = range(200),
    invariants: Sequence[Invariant] = (),
    commands: Sequence[tuple[str, Command[Any, Any]]] | None = None,
    next_version: App | None = None,
) -> Counter[str]:
    """Runs the app once for each seed, in one process, on production's own code, and returns what has happened.

        simulate(app, seeds=range(200), invariants=[following_and_followers_agree])

    Clients send commands, shards crash, hang, are replaced, and lose their disk's unsynced bytes; appends are lost,
    late or there twice; snapshots are damaged. Whatever happens, every reply, event, message, answer, row and digest
    must be that of a plain sequential model of the log; and when nothing goes wrong any more, everything must come to
    rest, and the invariants must hold: functions that get a `State`, and assert what is always so then.

    `commands` are keys and commands for clients to choose from; without them, some are made of the app's types. With
    `next_version`, the app is upgraded to it on the way. What is wrong raises `AssertionError`, with a short program
    that does it again.
    """
    pool = some_commands(app) if commands is None else list(commands)
    if not pool:
        raise Misuse("There is nothing to simulate: `commands` is empty.")
    subject = Subject(
        apps=[app] if next_version is None else [app, next_version], commands=pool, invariants=list(invariants)
    )
    counts: Counter[str] = Counter()
    for seed in seeds:
        counts += simulate_seed(subject, seed)
        counts["seeds"] += 1
    return counts


def simulate_seed(subject: Subject, seed: int) -> Counter[str]:
    """One seed. Raises `AssertionError` with a short program for what is wrong."""
    program = program_of(subject, seed)
    try:
        return check_program(subject, program)
    except Exception as problem:
        short = shrink(subject, program, problem)
        told = f"Seed {seed}: {problem}"
        text = program_text(subject, short, told=told)
        raise AssertionError(f"{type(problem).__name__} in seed {seed}: {problem}\n\n{text}") from problem


def some_commands(app: App) -> list[tuple[str, Command[Any, Any]]]:
    """Commands for an app, of all its types that clients may send; the same every time."""
    found: list[tuple[str, Command[Any, Any]]] = []

    @seeded(1)
    @settings(
        max_examples=_POOL // _AT_ONCE,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(commands_of(app), min_size=_AT_ONCE, max_size=_AT_ONCE))
    def collect(some: list[tuple[str, Command[Any, Any]]]) -> None:
        found.extend(some)

    collect()
    return found
