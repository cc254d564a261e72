"""A shard comes back from what is durable: nothing, the log alone, or a snapshot and the records after it."""

from __future__ import annotations

from pathlib import Path

import pytest
from engram import Unavailable
from engram.codec.record import Epoch, Kind
from engram.log.sqlite import SqliteLog
from engram.snapshots.files import FileSnapshots

from sample_apps.social.commands import Follow, Publish, Register
from tests.shard.network import FaultyLog, Network


def test_an_empty_log_gives_empty_partitions_that_serve(network: Network):
    """A shard on an empty log serves every partition, with no entities and nothing replayed."""
    owner = network.start()

    statuses = owner.shard.status().partitions
    assert [(p.state, p.entities, p.replayed, p.snapshot) for p in statuses] == [("serving", 0, 0, -1)] * 4


def test_a_new_owner_writes_its_epoch_before_it_handles_anything(network: Network):
    """The first record of a new owner says who it is, of which version and where, and its offset is the epoch."""
    network.send(network.key_in(2), Register(name="Ada"))
    owner = network.start([2])

    record = network.log.read(2, 1, limit=1)[0]
    assert record.kind is Kind.EPOCH
    word = Epoch(owner="owner-0", app_version=1, address="memory:owner-0", seen=1)
    assert Epoch.model_validate_json(record.payload) == word
    assert owner.partition(2).epoch == owner.image(2).epoch == 1


def test_a_lost_shard_comes_back_from_the_log_alone(network: Network):
    """Without any snapshot all records are replayed, and the image is the one that was lost."""
    owner = network.start()
    for key in ("ada", "bob"):
        network.send(key, Register(name=key))
    network.send("ada", Follow(whom="bob"))
    network.send("bob", Publish(text="hello"))
    network.settle(owner)
    before = {p: owner.partition(p).digest for p in range(4)}
    owner.kill()

    again = network.start()

    assert {p: again.partition(p).digest for p in range(4)} == before
    assert sum(p.replayed for p in again.shard.status().partitions) == sum(
        p.handled for p in owner.shard.status().partitions
    )


def test_recovery_takes_the_newest_snapshot_and_replays_only_what_came_after(network: Network):
    """With a snapshot at its back a shard handles the records after it, and no others, again."""
    key = network.key_in(0)
    owner = network.start([0], snapshot_every=2)
    network.send(key, Register(name="Ada"))
    network.send(key, Publish(text="in the snapshot"))
    network.settle(owner)
    snapshot = owner.partition(0).snapshot
    network.send(key, Publish(text="after it"))
    network.settle(owner)
    digest = owner.partition(0).digest
    owner.kill()

    status = network.start([0]).partition(0)

    assert (status.snapshot, status.replayed, status.digest) == (snapshot, 1, digest)
    assert snapshot == 3  # the epoch record and two commands


def test_a_restart_with_other_shards_finds_every_partition_as_it_was(network: Network):
    """What two shards have left, one takes over, and then four."""
    first = [network.start([0, 2], number=0), network.start([1, 3], number=1)]
    for number in range(12):
        network.send(f"user{number}", Register(name=f"User {number}"))
        network.send(f"user{number}", Follow(whom=f"user{(number + 5) % 12}"))
    network.settle(*first)
    before = {p: owner.partition(p).digest for owner in first for p in owner.shard.owned}
    for owner in first:
        owner.stop(clean=owner is first[0])

    one = network.start()
    after_one = {p: one.partition(p).digest for p in range(4)}
    one.kill()
    four = [network.start([p], number=p) for p in range(4)]

    assert after_one == before
    assert {p: four[p].partition(p).digest for p in range(4)} == before


def test_files_on_disk_bring_a_shard_back_in_another_process_life(tmp_path: Path):
    """Log and snapshots opened anew from their files give the image that was there before."""

    def opened() -> Network:
        log = SqliteLog(tmp_path / "social.db", "social", partitions=2, create=True)
        return Network(log=log, store=FileSnapshots(tmp_path / "snapshots", "social"))

    first = opened()
    owner = first.start(snapshot_every=3)
    for number in range(6):
        first.send(f"user{number}", Register(name=f"User {number}"))
        first.send(f"user{number}", Follow(whom=f"user{(number + 1) % 6}"))
    first.settle(owner)
    first.send("user0", Publish(text="the tail"))
    first.settle(owner)
    before = [owner.partition(p) for p in range(2)]
    owner.kill()
    first.log.close()

    second = opened()
    again = [second.start().partition(p) for p in range(2)]
    second.close()
    second.log.close()

    assert [p.digest for p in again] == [p.digest for p in before]
    assert all(p.snapshot > 0 for p in again)
    assert sum(p.replayed for p in again) < sum(p.handled for p in before)


def test_a_damaged_snapshot_is_set_aside_and_the_one_before_it_is_used(tmp_path: Path):
    """A flipped byte in the newest snapshot costs a longer replay, and nothing else."""
    network = Network(1, store=FileSnapshots(tmp_path, "social"))
    owner = network.start(snapshot_every=1)
    network.send("ada", Register(name="Ada"))
    network.settle(owner)
    network.send("ada", Publish(text="two"))
    network.settle(owner)
    newest, older = (manifest.offset for manifest in network.store.manifests(0))
    digest = owner.partition(0).digest
    owner.kill()
    part = next((tmp_path / "social" / "partition-0000").glob(f"{newest:015}-*/entities.parquet"))
    part.write_bytes(part.read_bytes()[:-1] + b"?")

    status = network.start().partition(0)
    network.close()

    assert (status.snapshot, status.replayed, status.digest) == (older, 1, digest)
    assert len(list((tmp_path / "social" / "partition-0000").glob("*.damaged"))) == 1


def test_a_log_that_was_cut_stops_the_partition(network: Network):
    """A log that ends before the snapshot is not appended to: the partition stops and says both numbers."""
    key = network.key_in(0)
    owner = network.start([0])
    network.send(key, Register(name="Ada"))
    for _ in range(5):
        network.send(key, Publish(text="hello"))
    network.settle(owner)
    owner.stop()
    older_copy = Network(4, store=network.store)

    status = older_copy.start([0]).partition(0)
    older_copy.close()

    assert status.state == "stopped"
    assert "cut, or is an older copy" in status.problem
    assert "ends at record 0, but its snapshot is of record 7" in status.problem
    assert older_copy.log.end(0) == 0


def test_a_log_that_does_not_answer_ends_the_recovery_and_not_the_partition():
    """A storage failure during recovery is `Unavailable`: the shard is started again, and it recovers."""
    log = FaultyLog("social", 1)
    network = Network(1, log=log)
    network.send("ada", Register(name="Ada"))
    log.unreadable = True
    with pytest.raises(Unavailable):
        network.prepare().shard.recover()
    log.unreadable = False

    again = network.start()
    network.close()

    assert (again.states, again.image(0).count()) == ({0: "serving"}, 1)
