"""Snapshots that somebody asks a running shard for: taken between commands, and answered when they are there."""

from __future__ import annotations

from engram.shard.requests import Answer, Refusal, SnapshotTaken, TakeSnapshot

from sample_apps.social.commands import Publish, Register
from tests.shard.network import Network, Owner
from tests.shard.test_snapshots import FullStore


def _taken(owner: Owner, number: int) -> SnapshotTaken:
    response = owner.response(number)
    assert isinstance(response, Answer), response
    return SnapshotTaken.model_validate_json(response.body)


def _refused(owner: Owner, number: int) -> Refusal:
    response = owner.response(number)
    assert isinstance(response, Refusal), response
    return response


def test_a_snapshot_is_taken_on_request_and_answered_when_it_is_published(network: Network):
    """The answer says of which record it is, and the store has it."""
    owner = network.start([0])
    network.send(network.key_in(0), Register(name="Ada"))
    network.settle(owner)
    owner.request(TakeSnapshot(7, 0, "", 1000))
    network.settle(owner)

    (manifest,) = network.store.manifests(0)
    taken = _taken(owner, 7)
    assert taken == SnapshotTaken.of(manifest)
    assert (taken.offset, taken.entities, taken.savepoint) == (2, 1, "")


def test_a_savepoint_is_whole_and_has_its_name(network: Network):
    """An ordinary snapshot has what changed since the last; one with a name has everything, and a digest."""
    owner = network.start([0])
    for nth in range(3):
        network.send(network.key_in(0, nth), Register(name="x"))
    network.settle(owner)
    for number, name in enumerate(["", "", "before-lunch"], 1):
        network.send(network.key_in(0), Publish(text="one user changes"))
        network.settle(owner)
        owner.request(TakeSnapshot(number, 0, name, 1000))
        network.settle(owner)

    assert [(_taken(owner, n).changed, _taken(owner, n).savepoint) for n in (1, 2, 3)] == [
        (3, ""),
        (1, ""),
        (3, "before-lunch"),
    ]
    assert _taken(owner, 3).digest == owner.partition(0).digest


def test_one_that_comes_while_another_is_under_way_waits_its_turn(network: Network):
    """Both are answered, in order, and each is of the moment when its own turn came."""
    owner = network.start([0], snapshot_budget_ms=0, snapshot_slice=1)
    for nth in range(6):
        network.send(network.key_in(0, nth), Register(name="x"))
    owner.step()
    owner.request(TakeSnapshot(1, 0, "first", 1000))
    owner.step()
    owner.request(TakeSnapshot(2, 0, "second", 1000))
    network.send(network.key_in(0), Publish(text="between the two"))
    owner.step()
    assert owner.image(0).freeze is not None
    network.settle(owner)
    while owner.response(2) is None:
        owner.step()

    assert [_taken(owner, n).offset for n in (1, 2)] == [7, 8]
    assert [m.savepoint for m in network.store.manifests(0)] == ["second", "first"]


def test_one_whose_time_is_over_before_its_turn_is_refused(network: Network):
    """It is not taken for somebody who does not wait any more."""
    owner = network.start([0], snapshot_budget_ms=0, snapshot_slice=1)
    for nth in range(6):
        network.send(network.key_in(0, nth), Register(name="x"))
    owner.step()
    owner.request(TakeSnapshot(1, 0, "first", 1000))
    owner.step()
    owner.request(TakeSnapshot(2, 0, "second", 5))
    owner.step()
    network.clock.now += 10
    owner.step()

    assert _refused(owner, 2).kind == "behind"
    network.settle(owner)
    assert [m.savepoint for m in network.store.manifests(0)] == ["first"]


def test_a_store_that_fails_is_told_and_work_goes_on():
    """The refusal says what the store said; the next one has everything."""
    store = FullStore("social")
    network = Network(1, store=store)
    owner = network.start()
    network.send("ada", Register(name="Ada"))
    network.settle(owner)
    store.full = True
    owner.request(TakeSnapshot(1, 0, "full", 1000))
    network.settle(owner)
    store.full = False
    network.send("ada", Publish(text="hello"))
    owner.request(TakeSnapshot(2, 0, "again", 1000))
    network.settle(owner)
    network.close()

    assert _refused(owner, 1) == Refusal(
        1, "unavailable", "The snapshot of partition 0 could not be taken: The disk is full."
    )
    assert (_taken(owner, 2).offset, _taken(owner, 2).digest) == (3, owner.partition(0).digest)


def test_a_partition_that_is_elsewhere_is_not_snapshotted_here(network: Network):
    """Asked after it has lost the partition, or while it does, a shard says so: who asks looks for the new owner."""
    owner = network.start([0, 1])
    network.start([0])
    owner.request(TakeSnapshot(1, 0, "late", 1000))
    owner.step()
    owner.request(TakeSnapshot(2, 0, "later", 1000))
    owner.request(TakeSnapshot(3, 2, "never mine", 1000))
    owner.step()

    assert [_refused(owner, n).kind for n in (1, 2, 3)] == ["moved", "moved", "moved"]
    assert network.store.manifests(0) == []


def test_a_stop_with_a_savepoint_takes_one_of_every_partition(network: Network):
    """Also of those in which nothing has changed since their last snapshot; and all have ended."""
    network.start().stop(clean=True)
    owner = network.start()
    network.send(network.key_in(0), Register(name="Ada"))
    network.settle(owner)
    owner.stop(clean=True, savepoint="v1-end")

    newest = [network.store.manifests(p)[0] for p in range(4)]
    assert [manifest.savepoint for manifest in newest] == ["v1-end"] * 4
    assert [(p.state, p.snapshot) for p in owner.line.announced[-1].partitions] == [
        ("ended", manifest.offset) for manifest in newest
    ]


def test_a_savepoint_that_fails_at_the_stop_is_told():
    """The partition is not said to have ended, and why."""
    store = FullStore("social")
    network = Network(1, store=store)
    owner = network.start()
    network.send("ada", Register(name="Ada"))
    network.settle(owner)
    store.full = True
    owner.stop(clean=True, savepoint="v1-end")
    network.close()

    (last,) = owner.line.announced[-1].partitions
    assert (last.state, last.problem) == ("stopped", "Its last snapshot could not be taken: The disk is full.")
