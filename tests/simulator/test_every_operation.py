"""One history, and the power lost in every single one of its operations on log and store, in every way."""

from __future__ import annotations

from typing import get_args

import pytest
from engram.testing.simulator.checking import check_program, checked
from engram.testing.simulator.disk import Loss
from engram.testing.simulator.steps import Act, Commit, Go, Program, Send, Setup, Snapshot, Upgrade, Work

from tests.simulator.bank import subject

SETUP = Setup(partitions=2, shards=1, clients=2, snapshot_every=1000, keep=1, independent=True)
HISTORY = Program(
    SETUP,
    [
        Go(1),
        Send(0, 0),
        Send(1, 3),
        Go(1),
        Snapshot(0),
        Snapshot(1),
        Send(0, 7),
        Commit(),
        Go(2),
        Send(1, 12, once=True),
        Send(0, 19),
        Go(2),
        Snapshot(0),
        Go(1),
        Act(0, again=True),
        Commit(),
        Work(0, 1),
        Upgrade(),
        Go(1),
        Send(1, 23),
        Go(2),
    ],
)


def operations(loss: Loss) -> int:
    """How many there are before everything is at rest."""
    never = 1_000_000
    world = checked(subject, HISTORY._replace(setup=SETUP._replace(crash_at=never, loss=loss)))
    return world.operations_in_steps


def test_the_history_is_of_some_size():
    """About two hundred operations, with snapshots of both partitions, and an upgrade."""
    counts = check_program(subject, HISTORY)
    assert 150 <= operations("clean") <= 400
    assert counts["upgrades"] == 1


@pytest.mark.parametrize("loss", get_args(Loss))
def test_power_lost_in_any_operation_loses_nothing(loss: Loss):
    """Whatever was under way, and whatever the disk has kept of it: all that was acknowledged is there, once, and every
    snapshot that was published is whole."""
    for number in range(1, operations(loss) + 1):
        program = HISTORY._replace(setup=SETUP._replace(crash_at=number, loss=loss))
        try:
            check_program(subject, program)
        except Exception as problem:
            raise AssertionError(f"operation {number}, {loss}: {problem}") from problem
