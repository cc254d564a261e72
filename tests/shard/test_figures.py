"""The figures of snapshots and recoveries: in a partition's status, in the manifests, and in the log lines."""

from __future__ import annotations

import threading

from engram import Unavailable
from engram.snapshots.base import Contents
from engram.snapshots.manifest import Manifest
from engram.snapshots.memory import MemorySnapshots
from structlog.testing import capture_logs

from sample_apps.social.commands import Publish, Register
from tests.shard.network import Network


class SlowStore(MemorySnapshots):
    """A store that takes nothing until it is let, and refuses while it is `full`."""

    full = False

    def __init__(self, app: str) -> None:
        super().__init__(app)
        self.let = threading.Event()

    def publish(self, partition: int, contents: Contents, *, created: int) -> Manifest:
        self.let.wait(20)
        if self.full:
            raise Unavailable("The disk is full.")
        return super().publish(partition, contents, created=created)


def test_a_snapshot_leaves_its_figures_in_the_status_the_log_lines_and_the_manifest(network: Network):
    """Of which record, how many entities, how many changed, bytes, pause and background time: everywhere the same."""
    owner = network.start([0], snapshot_every=2)
    keys = [network.key_in(0, nth) for nth in range(3)]
    with capture_logs() as lines:
        for key in keys:
            network.send(key, Register(name=key))
            network.settle(owner)
        network.send(keys[0], Publish(text="hello"))
        network.settle(owner)

    status = owner.partition(0)
    manifest = network.snapshots(0)[-1].manifest
    figures = status.newest_snapshot
    assert figures is not None
    assert (figures.offset, figures.entities, figures.changed) == (5, 3, 2)
    assert figures.created == network.clock()
    assert 0 < figures.pause_ms < 10_000
    assert 0 < figures.background_ms < 10_000
    assert (manifest.pause_ms, manifest.background_ms) == (figures.pause_ms, figures.background_ms)
    assert (status.snapshots_published, status.snapshots_failed, status.snapshot_behind) == (2, 0, False)
    told = [line for line in lines if line["event"] == "snapshot_published"]
    assert [line["offset"] for line in told] == [3, 5]
    assert told[-1] == {
        "event": "snapshot_published",
        "log_level": "info",
        "partition": 0,
        **figures.model_dump(),
    }


def test_a_recovery_tells_what_it_loaded_and_what_it_replayed(network: Network):
    """Two entities come from the snapshot; the two records after it, and the new epoch, are replayed."""
    first = network.start([0], snapshot_every=2)
    keys = [network.key_in(0, nth) for nth in range(2)]
    for key in keys:
        network.send(key, Register(name=key))
        network.settle(first)
    network.send(keys[0], Publish(text="after the snapshot"))
    network.settle(first)
    taken = first.partition(0).newest_snapshot
    first.kill()

    with capture_logs() as lines:
        second = network.start([0])

    recovery = second.partition(0).recovery
    assert recovery is not None
    assert (recovery.entities, recovery.records) == (2, 2)
    assert 0 < recovery.load_ms <= recovery.total_ms
    assert 0 < recovery.replay_ms <= recovery.total_ms
    assert second.partition(0).newest_snapshot == taken
    (told,) = (line for line in lines if line["event"] == "recovered")
    assert told == {"event": "recovered", "log_level": "info", "partition": 0, **recovery.model_dump()}


def test_writing_that_falls_behind_is_told_while_work_goes_on():
    """The next snapshot is due and the last is still being written: commands are handled, and the status says so, once
    in the log lines too, until it is written."""
    store = SlowStore("social")
    network = Network(1, store=store)
    owner = network.start(snapshot_every=2)
    with capture_logs() as lines:
        for number in range(5):
            network.send(f"user{number}", Register(name="Ada"))
            owner.step()
            owner.step()
        behind = owner.partition(0)
        store.let.set()
        network.settle(owner)
    caught_up = owner.partition(0)
    network.close()

    assert (behind.snapshot_behind, behind.handled, behind.snapshots_published) == (True, 5, 0)
    assert (caught_up.snapshot_behind, caught_up.snapshots_published) == (False, 2)
    assert [line["event"] for line in lines if line["log_level"] == "warning"] == ["snapshot_behind"]


def test_snapshots_that_failed_are_counted():
    """A full store: each try counts, and the figures stay those of the last one that was published."""
    store = SlowStore("social")
    store.let.set()
    network = Network(1, store=store)
    owner = network.start(snapshot_every=1)
    for number in range(3):
        network.send(f"user{number}", Register(name="Ada"))
        network.settle(owner)
        store.full = True
        network.clock.now += 60_000  # what has failed is tried again after a while
    status = owner.partition(0)
    network.close()

    assert (status.snapshots_published, status.snapshots_failed) == (1, 2)
    assert status.newest_snapshot is not None
    assert status.newest_snapshot.offset == status.snapshot == 2


def test_figures_are_under_the_seal_and_manifests_without_them_stay_readable():
    """A manifest whose pause was changed is not believed; one from before there were figures is."""
    plain = Manifest(
        app="a", app_version=1, partition=0, offset=1, epoch=0, digest="", entities=0, changed=0, created=0, parts=[]
    )
    figured = plain.model_copy(update={"pause_ms": 1.5, "background_ms": 20.0}).sealed()
    before = plain.sealed().model_dump_json(exclude={"pause_ms", "background_ms"}).encode()

    assert Manifest.decode(figured.encode()) == figured
    assert Manifest.decode(before) == plain.sealed()
    assert figured.seal != plain.sealed().seal
