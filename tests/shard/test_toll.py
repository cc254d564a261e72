"""What snapshots take of a shard's time."""

from __future__ import annotations

import pytest
from engram.shard.policy import Policy
from engram.shard.toll import Toll
from engram.worker import InlineWorker
from hypothesis import given
from hypothesis import strategies as st

from sample_apps.social.commands import Publish, Register
from tests.shard.network import Network

turns = st.tuples(st.integers(1, 2000), st.floats(0.0001, 0.5))


def _ended(toll: Toll) -> int:
    """The first millisecond, from 0, at which the rest is over."""
    return next(now for now in range(10**7) if toll.is_over(now))


def test_what_commands_take_longer_is_counted():
    """1,000 commands that took a second without a snapshot take three with one: two are its own, and ten of rest come
    for each of them but itself."""
    toll = Toll(Policy(snapshot_share=0.1))
    toll.handled(1000, 1.0, under_way=False)
    toll.handled(1000, 3.0, under_way=True)
    toll.rest(0)

    assert _ended(toll) == pytest.approx(18_000, abs=1)


@given(st.lists(turns, min_size=1), st.lists(turns))
def test_no_more_is_counted_than_went_by(without, during):
    """However slow the load has become: what is counted is between nothing and all of the time."""
    toll = Toll(Policy(snapshot_share=0.5))
    for commands, seconds in without:
        toll.handled(commands, seconds, under_way=False)
    for commands, seconds in during:
        toll.handled(commands, seconds, under_way=True)
    toll.rest(0)

    assert toll.is_over(1 + int(1000 * sum(seconds for _, seconds in during)))


def test_rests_are_added_up():
    """Two partitions whose snapshots end at the same time have each its own."""
    toll = Toll(Policy(snapshot_share=0.5))
    toll.add(1.0)
    toll.rest(0)
    toll.add(2.0)
    toll.rest(0)

    assert _ended(toll) == 3000


def test_what_was_asked_for_is_free():
    """A snapshot on order does not make those of the policy rarer."""
    toll = Toll(Policy(snapshot_share=0.5))
    toll.add(1.0)
    toll.rest(0, free=True)

    assert toll.is_over(0)


class _Watch:
    """Every look at it takes a hundredth of a second; the clock follows."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._seconds = 0.0

    def __call__(self) -> float:
        self._seconds += 0.01
        self._network.clock.now += 10
        return self._seconds


def _at_once(_name: str) -> InlineWorker:
    """What is written takes no time: a thread's would be the machine's own, which this clock does not follow."""
    return InlineWorker()


def test_partitions_share_the_shards_time(network: Network):
    """Four busy partitions have no more snapshots together than one alone has in the same time."""

    def snapshots(partitions: list[int]) -> float:
        owner = network.start(
            partitions, snapshot_every=1, snapshot_share=0.1, stopwatch=_Watch(network), new_worker=_at_once
        )
        since = network.clock.now
        for number in range(400):
            for partition in partitions:
                network.send(network.key_in(partition, number % 3), Publish(text=str(number)))
            owner.step()
        taken = sum(owner.partition(partition).snapshots_published for partition in partitions)
        owner.stop()
        return taken / (network.clock.now - since)

    for partition in range(4):
        for nth in range(3):
            network.send(network.key_in(partition, nth), Register(name="Ada"))

    assert snapshots([0, 1, 2, 3]) <= 1.5 * snapshots([0])
