"""One program, run and compared."""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from engram.testing.simulator.draws import draw
from engram.testing.simulator.oracle import check
from engram.testing.simulator.run import run
from engram.testing.simulator.steps import Program
from engram.testing.simulator.subject import Subject
from engram.testing.simulator.world import World


def check_program(subject: Subject, program: Program) -> Counter[str]:
    """Runs it, and compares everything with the model; how often what has happened.

    Raises `Wrong` for what does not hold, and whatever production raises where it should not.
    """
    return counts_of(checked(subject, program))


def checked(subject: Subject, program: Program) -> World:
    """The same; the world as it was at the end."""
    with quietly():
        world = run(subject, program)
        check(world)
    return world


def program_of(subject: Subject, seed: int) -> Program:
    return draw(seed, commands=len(subject.commands), questions=len(subject.questions), upgrades=len(subject.apps) > 1)


def counts_of(world: World) -> Counter[str]:
    calls = [call for client in world.clients for call in client.calls]
    return world.counts + Counter(
        {
            "commands": len(calls),
            "commands acknowledged": sum(call.outcome is not None for call in calls),
            "records": sum(world.log.end(partition) for partition in range(world.setup.partitions)),
            "operations": world.operations,
            "virtual seconds": world.time.passed // 1000,
        }
    )


@contextmanager
def quietly() -> Iterator[None]:
    """Production tells of every fault that it meets: here they are wanted."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        with warnings.catch_warnings():
            yield
    finally:
        structlog.configure(**before)
