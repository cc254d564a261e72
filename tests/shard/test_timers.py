"""A shard tells its partitions the time when a timer is due."""

from __future__ import annotations

import pytest
from engram.codec.record import Kind

from tests.image.clockwork import Clockwork, Wind, app
from tests.shard.network import Network, Owner


@pytest.fixture
def network():
    network = Network(2, app=app)
    yield network
    network.close()


def ticks(network: Network) -> list[int]:
    return [r.time for p in range(2) for r in network.log.read(p, 0, limit=1000) if r.kind is Kind.TICK]


def rang(owner: Owner, network: Network, key: str) -> list[str]:
    clockwork = owner.image(network.home(key)).find(Clockwork, key) or Clockwork(key=key)
    return [text.split()[0] for text in clockwork.rang]


def test_a_due_timer_fires_without_any_command(network: Network):
    """One record with the time is appended when it is due, and none before or after."""
    shard = network.start()
    network.send("a", Wind(what="x", ms=500))
    network.settle(shard)
    network.clock.now += 499
    network.settle(shard)
    before = ticks(network), rang(shard, network, "a")
    network.clock.now += 1
    network.settle(shard)
    network.settle(shard)
    network.clock.now += 1000
    network.settle(shard)

    assert before == ([], [])
    assert rang(shard, network, "a") == ["x"]
    assert len(ticks(network)) == 1


def test_overdue_timers_fire_when_the_app_is_back(network: Network):
    """What came due while nothing ran fires once the partition is served again, from a snapshot or from zero."""
    first = network.start(snapshot_every=1)
    network.send("a", Wind(what="x", ms=500))
    network.settle(first)
    first.kill()
    network.clock.now += 10_000
    second = network.start()
    network.settle(second)

    assert rang(second, network, "a") == ["x"]
    assert network.replayed(network.home("a")).digest() == second.image(network.home("a")).digest()


def test_a_tick_that_could_not_be_appended_is_tried_again(network: Network):
    """An old owner and a new one may both tell the time: the timer fires once."""
    first = network.start()
    network.send("a", Wind(what="x", ms=500))
    network.settle(first)
    network.clock.now += 500
    second = network.start()
    network.settle(second)
    first.step()
    network.settle(second)

    assert rang(second, network, "a") == ["x"]


def test_a_shard_sleeps_until_the_next_timer(network: Network):
    """It neither spins while it waits nor sleeps over the time."""
    shard = network.start()
    network.send("a", Wind(what="x", ms=200))
    network.settle(shard)
    shard.step()
    waits = shard.shard._nap()
    network.clock.now += 150
    waits_less = shard.shard._nap()

    assert (waits, waits_less) == (200, 50)
