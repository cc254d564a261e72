"""One owner: whoever meets the epoch record of a newer owner stops, and says where queries are to go."""

from __future__ import annotations

import pytest
from engram import Fenced
from engram.codec.record import Epoch, Kind, encode_epoch
from engram.log.base import Entry
from engram.log.memory import MemoryLog
from engram.shard.requests import Answer, Refusal

from sample_apps.social.commands import Publish, Register
from sample_apps.social.queries import Posts
from tests.shard.network import Network


def test_an_owner_that_meets_a_newer_epoch_stops(network: Network):
    """The old owner handles nothing after the epoch record of the new one."""
    old = network.start([0])
    key = network.key_in(0)
    network.send(key, Register(name="Ada"))
    old.step()
    new = network.start([0])
    network.send(key, Publish(text="for the new owner"))

    old.step()
    network.settle(new)

    assert old.states == {0: "moved"}
    assert old.partition(0).problem == "Fenced: A newer owner has partition 0 since record 2."
    assert [replies.offset for replies in old.replies()] == [1]
    assert [replies.offset for replies in new.replies()] == [3]


def test_of_two_owners_at_once_one_is_left(network: Network):
    """Started side by side on all partitions, only the one that came last goes on, with all commands once."""
    first, second = network.start(), network.start()
    for number in range(20):
        network.send(f"user{number}", Register(name=f"User {number}"))
    for _ in range(5):
        first.step()
        second.step()

    assert set(first.states.values()) == {"moved"}
    assert set(second.states.values()) == {"serving"}
    assert sum(second.image(p).count() for p in range(4)) == 20
    assert [second.partition(p).digest for p in range(4)] == [network.replayed(p).digest() for p in range(4)]


def test_a_shard_that_lost_one_partition_serves_its_others(network: Network):
    """Only the partition that was taken is given up."""
    old = network.start([0, 1])
    network.start([1])
    network.send(network.key_in(0), Register(name="Ada"))
    network.send(network.key_in(1), Register(name="Bob"))

    assert old.step()
    assert old.states == {0: "serving", 1: "moved"}
    assert [replies.partition for replies in old.replies()] == [0]


def test_a_shard_that_lost_a_partition_ends_as_a_failure_when_no_more_is_taken(network: Network):
    """While a successor takes one after the other, the rest is served; then whoever looks after it starts it anew."""
    old = network.start([0, 1, 2])
    network.start([0])
    old.step()
    network.clock.now += 9_000
    network.start([1])
    assert old.step()
    network.clock.now += 9_000
    assert old.step()
    assert old.states == {0: "moved", 1: "moved", 2: "serving"}
    network.clock.now += 1_000

    with pytest.raises(Fenced, match="A newer owner has partition 0 since record 1"):
        old.step()


def test_a_shard_that_lost_everything_ends_as_a_failure(network: Network):
    """One that ended well would not be started again, and if its successor is dead nobody served its partitions."""
    old = network.start([0])
    network.start([0])
    assert old.step()
    network.clock.now += 10_000

    with pytest.raises(Fenced):
        old.step()


def test_an_epoch_whose_owner_has_not_seen_the_last_says_nothing(network: Network):
    """The epoch record of an owner that died before it arrived takes the partition from nobody, live or replayed."""
    owner = network.start([0])
    network.log.append([epoch(0, "dead", seen=0)])
    key = network.key_in(0)
    network.send(key, Register(name="Ada"))
    network.settle(owner)

    assert owner.states == {0: "serving"}
    assert [replies.offset for replies in owner.replies()] == [2]
    assert owner.image(0).epoch == network.replayed(0).epoch == 0


def test_an_epoch_of_old_always_counts(network: Network):
    """Logs from before have records that do not say what their owners had seen."""
    owner = network.start([0])
    network.log.append([epoch(0, "newer", seen=None)])
    owner.step()

    assert owner.states == {0: "moved"}


def test_an_owner_that_comes_second_fails_at_once():
    """When another has taken the partition since it began, it serves nothing, and is to be started anew."""
    log = OneCameFirst("social", 1)
    network = Network(log=log)
    second = network.prepare([0])

    with pytest.raises(Fenced, match="Partition 0 has an owner since record 0: it came first"):
        second.shard.recover()

    assert second.states == {0: "moved"}
    assert network.start([0]).states == {0: "serving"}
    network.close()


def epoch(partition: int, owner: str, *, seen: int | None) -> Entry:
    return Entry(partition, Kind.EPOCH, 0, encode_epoch(Epoch(owner=owner, app_version=1, seen=seen)))


class OneCameFirst(MemoryLog):
    """The first owner that takes a partition finds that somebody was quicker."""

    def append(self, entries, events=()):
        if not self.end(0):
            super().append([epoch(0, "quick", seen=0)])
        return super().append(entries, events)


def test_a_query_at_an_owner_that_was_fenced_is_told_that_the_partition_moved(network: Network):
    """Nothing is wrong with a partition that has a newer owner: queries, parked ones too, are to look for it."""
    old = network.start([0, 1])
    key = network.key_in(1)
    position = network.send(key, Register(name="Bob"))
    parked = old.ask(key, Posts(), at_least=position._replace(offset=position.offset + 5))
    old.step()
    network.start([1])
    old.step()
    later = old.ask(key, Posts())
    old.step()

    kinds = [response.kind for response in map(old.response, (parked, later)) if isinstance(response, Refusal)]
    assert kinds == ["moved", "moved"]


def test_a_fenced_owner_leaves_no_snapshot_behind(network: Network):
    """Told to stop cleanly, an owner that was fenced writes nothing for a partition that is not its own."""
    old = network.start([0, 1])
    network.start([0])
    old.step()
    old.stop(clean=True)

    assert network.store.manifests(0) == []
    assert len(network.store.manifests(1)) == 1


def test_an_answer_is_given_until_the_newer_epoch_is_met(network: Network):
    """Before it has read of its successor an owner still answers, with the position that it is at."""
    old = network.start([0])
    network.start([0])
    number = old.ask(network.key_in(0), Posts())
    old.step()

    answer = old.response(number)
    assert isinstance(answer, Answer)
    assert answer.offset == 0
