"""When a shard snapshots a partition: after so many commands, and at a clean stop."""

from __future__ import annotations

from typing import Any

import pytest
from engram import Unavailable
from engram.snapshots.base import Contents
from engram.snapshots.manifest import Manifest
from engram.snapshots.memory import MemorySnapshots

from sample_apps.social.commands import Follow, Publish, Register
from tests.shard.network import FaultyLog, Network


class FullStore(MemorySnapshots):
    """A store that takes nothing while `full`."""

    full = False

    def publish(self, partition: int, contents: Contents, *, created: int) -> Manifest:
        if self.full:
            raise Unavailable("The disk is full.")
        return super().publish(partition, contents, created=created)


def _publish(network: Network, times: int, key: str) -> None:
    for number in range(times):
        network.send(key, Publish(text=str(number)))


def test_a_partition_is_snapshotted_after_so_many_commands(network: Network):
    """With `snapshot_every` 5, twelve commands handled one by one give two snapshots."""
    owner = network.start([0], snapshot_every=5)
    network.send(network.key_in(0), Register(name="Ada"))
    for _ in range(11):
        _publish(network, 1, network.key_in(0))
        network.settle(owner)

    # Offset 0 is the epoch record, so a snapshot of five commands is of offset 6.
    assert [loaded.manifest.offset for loaded in network.snapshots(0)] == [6, 11]
    assert owner.partition(0).snapshot == 11


def test_partitions_are_counted_for_themselves(network: Network):
    """A busy partition is snapshotted, and its idle neighbour is not."""
    owner = network.start([0, 1], snapshot_every=5)
    network.send(network.key_in(1), Register(name="Bob"))
    network.send(network.key_in(0), Register(name="Ada"))
    _publish(network, 6, network.key_in(0))
    network.settle(owner)

    assert (len(network.snapshots(0)), len(network.snapshots(1))) == (1, 0)


def test_a_snapshot_is_of_one_moment_while_commands_go_on(network: Network):
    """A freeze that takes many turns, with commands between them, is of the position where it began."""
    keys = [network.key_in(0, nth) for nth in range(12)]
    owner = network.start([0], snapshot_every=len(keys), snapshot_budget_ms=0, snapshot_slice=1)
    for key in keys:
        network.send(key, Register(name=key))
    owner.step()
    assert owner.image(0).freeze is not None
    at_the_beginning, offset = owner.image(0).digest(), owner.image(0).offset
    for key in keys[:4]:
        _publish(network, 1, key)
        owner.step()
    assert owner.image(0).freeze is not None
    network.settle(owner)

    manifest = network.snapshots(0)[0].manifest
    assert (manifest.digest, manifest.offset) == (at_the_beginning, offset)


def test_any_snapshot_and_the_records_after_it_give_the_live_image(network: Network):
    """Each of eight snapshots, with its tail replayed, has the digest of the image that never stopped."""
    owner = network.start([0], snapshot_every=1)
    network.send(network.key_in(0), Register(name="Ada"))
    network.settle(owner)
    for _ in range(7):
        _publish(network, 1, network.key_in(0))
        network.settle(owner)

    digests = [network.replayed(0, loaded).digest() for loaded in network.snapshots(0)]
    assert digests == [owner.partition(0).digest] * 8


def test_a_clean_stop_takes_a_last_snapshot_of_every_partition(network: Network):
    """After a clean stop nothing is left to replay."""
    owner = network.start()
    for number in range(8):
        network.send(f"user{number}", Register(name="x"))
    network.settle(owner)
    owner.stop(clean=True)

    again = network.start()

    assert [p.replayed for p in again.shard.status().partitions] == [0, 0, 0, 0]
    assert sum(p.entities for p in again.shard.status().partitions) == 8


def test_a_stop_that_is_not_clean_takes_none(network: Network):
    """Told to end at once, a shard writes no snapshot."""
    owner = network.start()
    network.send("ada", Register(name="Ada"))
    network.settle(owner)
    owner.stop(clean=False)

    assert [network.snapshots(p) for p in range(4)] == [[], [], [], []]


def test_a_clean_stop_without_new_commands_writes_no_second_snapshot(network: Network):
    """Started and stopped again with nothing to do, a shard leaves the snapshots as they are."""
    network.start([0]).stop(clean=True)
    network.start([0]).stop(clean=True)

    assert len(network.snapshots(0)) == 1


def test_a_clean_stop_snapshots_records_whose_commands_were_all_dropped():
    """A record of messages seen before changes nothing, but it is in the log: the last snapshot goes beyond it."""
    log = FaultyLog("social", 2)
    network = Network(2, log=log)
    ada, bob = network.key_in(0), network.key_in(1)
    owner = network.start(snapshot_every=1)
    network.send(ada, Register(name="Ada"))
    network.settle(owner)
    log.unsure = True
    with pytest.raises(Unavailable):
        network.send(ada, Follow(whom=bob))
    owner.step()
    log.unsure = False
    network.settle(owner)
    owner.stop(clean=True)
    network.close()

    # The last record says where the owner has ended; it is not in the snapshot.
    assert [network.store.manifests(p)[0].offset for p in range(2)] == [log.end(p) - 1 for p in range(2)]


def test_a_snapshot_that_could_not_be_written_is_made_up_for_at_a_clean_stop():
    """A store that was full for a while costs a snapshot, not the last one."""
    store = FullStore("social")
    network = Network(1, store=store)
    owner = network.start(snapshot_every=1)
    network.send("ada", Register(name="Ada"))
    network.settle(owner)
    store.full = True
    network.send("ada", Publish(text="hello"))
    network.settle(owner)
    failed = owner.partition(0)
    store.full = False
    owner.stop(clean=True)
    network.close()

    assert (failed.state, failed.snapshot) == ("serving", 2)
    assert [manifest.offset for manifest in store.manifests(0)] == [3, 2]


def test_status_is_announced_with_the_newest_snapshot(network: Network):
    """The last announcement of a shard that stops tells the registry of the snapshot it has just written."""
    owner = network.start([0])
    network.send(network.key_in(0), Register(name="Ada"))
    network.settle(owner)
    owner.stop(clean=True)

    last: Any = owner.line.announced[-1].partitions[0]
    assert (last.snapshot, owner.line.closed) == (2, True)
