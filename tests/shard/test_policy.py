"""When a snapshot is due."""

import math

import pytest
from engram.shard.policy import Policy
from hypothesis import given
from hypothesis import strategies as st

POLICY = Policy(snapshot_every=100, snapshot_seconds=60, snapshot_pause=5, snapshot_share=0.1)


@pytest.mark.parametrize(
    ("commands", "seconds", "due"),
    [(100, 5, True), (99, 5, False), (1, 60, True), (0, 10_000, False), (10**9, 4.9, False)],
    ids=["enough commands", "too few", "one, a long time ago", "nothing happened", "the last was just now"],
)
def test_when_it_is_due(commands, seconds, due):
    """By commands or by time, after a pause."""
    assert POLICY.due(commands, seconds) is due


@given(st.floats(0.001, 100), st.floats(0.001, 1))
def test_the_share_is_kept(taken, share):
    """Snapshots and the rest after them have their shares of the time."""
    assert taken / (taken + Policy(snapshot_share=share).rest(taken)) == pytest.approx(share)


def test_no_bound():
    """An infinite share is none."""
    assert Policy(snapshot_share=math.inf).rest(1000) == 0
