"""When a snapshot is due."""

import math

import pytest
from engram.shard.policy import Policy
from hypothesis import given
from hypothesis import strategies as st

POLICY = Policy(snapshot_every=100, snapshot_seconds=60, snapshot_pause=5, snapshot_share=0.1)


@pytest.mark.parametrize(
    ("commands", "seconds", "cost", "due"),
    [
        (100, 5, 0, True),
        (99, 5, 0, False),
        (1, 60, 0, True),
        (0, 10_000, 0, False),
        (10**9, 4.9, 0, False),
        (10**9, 17.9, 2, False),
        (10**9, 18.1, 2, True),
    ],
    ids=[
        "enough commands",
        "too few",
        "one, a long time ago",
        "nothing happened",
        "the last was just now",
        "the last took long",
        "the last took long, long ago",
    ],
)
def test_when_it_is_due(commands, seconds, cost, due):
    """By commands or by time, after a pause that follows what the last one took."""
    assert POLICY.due(commands, seconds, cost) is due


@given(st.floats(0.001, 100), st.floats(0.001, 1))
def test_the_share_is_kept(cost, share):
    """However often a snapshot is due, snapshots take no more than their share of the time."""
    policy = Policy(snapshot_every=1, snapshot_share=share)
    pause = cost / share - cost
    assert not policy.due(1, pause * 0.99 - 1e-9, cost)
    assert policy.due(1, pause * 1.01 + 1e-9, cost)
    assert cost / (cost + pause) == pytest.approx(share)


def test_no_bound():
    """An infinite share is none."""
    assert Policy(snapshot_every=1, snapshot_share=math.inf).due(1, 0, 1000)
