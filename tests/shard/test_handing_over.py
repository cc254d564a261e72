"""Snapshots that are too large to be in memory as a whole: handed to the writer bit by bit, as fast as it writes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engram.shard.spill import Spill
from engram.snapshots.parted import PartedSnapshots
from engram.snapshots.storage import Storage

from sample_apps.social.commands import Publish, Register
from tests.shard.network import Network, Owner
from tests.snapshots.test_outage import DEADLINE_S, Disk

USERS = 200
SLICE_BYTES = 2000


@pytest.fixture(autouse=True)
def _small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engram.shard.snapshotting.SLICE_BYTES", SLICE_BYTES)


def _store(storage: Storage) -> PartedSnapshots:
    return PartedSnapshots(storage, "social", slice_bytes=SLICE_BYTES)


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path / "social")


@pytest.fixture
def network(disk: Disk) -> Iterator[Network]:
    made = Network(2, store=_store(disk))
    for number in range(USERS):
        made.send(f"user{number}", Register(name=f"User {number}"))
    yield made
    disk.heal()
    made.close()


def _until(owner: Owner, ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not ready():
        assert time.monotonic() < deadline, "it did not come true in time"
        owner.step()


def _start(network: Network, tmp_path: Path, **how: object) -> Owner:
    """A shard with most of its entities on disk, everything handled."""
    owner = network.start(hot_entities=20, snapshot_slice=5, cold=lambda: Spill(tmp_path / "spill"), **how)
    network.settle(owner)
    _until(owner, lambda: all(len(owned.image.entities["user"]) <= 40 for owned in owner.shard.owned.values()))
    return owner


def _hang(network: Network, disk: Disk, owner: Owner) -> None:
    """A snapshot of all begins, and cannot go on because the store hangs."""
    disk.trouble = "hang"
    owner.shard.begin_snapshot(0)
    _until(owner, lambda: owner.shard.owned[0].taking.waits)


def test_a_copy_waits_for_its_writer_and_is_of_one_moment(network: Network, disk: Disk, tmp_path: Path):
    """While the store hangs, a few slices are on their way and no more; commands go on, for entities on disk too; and
    what is written then is of the moment when it began."""
    owner = _start(network, tmp_path)
    digest, offset = owner.image(0).digest(), owner.image(0).offset
    _hang(network, disk, owner)
    for number in range(USERS):
        network.send(f"user{number}", Publish(text="meanwhile"))
    _until(owner, lambda: owner.image(0).offset == network.log.end(0))
    _until(owner, lambda: owner.shard._nap() > 0)  # it does not look without a pause
    assert owner.image(0).freeze is not None
    disk.heal()
    network.settle(owner)

    newest = network.store.newest(0)
    assert newest is not None
    assert (newest.manifest.digest, newest.manifest.offset) == (digest, offset)
    assert len(newest.manifest.entity_parts) > 1
    assert network.replayed(0, newest).digest() == owner.image(0).digest()


def test_a_restart_and_what_has_changed_come_in_slices_too(network: Network, tmp_path: Path):
    """Loaded to disk, changed, written again, as changes and as a savepoint: always the image of a replay."""
    owner = _start(network, tmp_path)
    owner.stop()
    for text in ("one", "two", "three"):
        owner = _start(network, tmp_path)
        for number in range(0, USERS, 3):
            network.send(f"user{number}", Publish(text=text))
        network.settle(owner)
        digests = [owner.partition(p).digest for p in range(2)]
        assert digests == [network.replayed(p).digest() for p in range(2)]
        owner.stop(savepoint=text if text == "two" else "")
        assert [network.store.manifests(p)[0].digest for p in range(2)] == digests

    assert len(network.store.manifests(0)[0].steps) > 1


def test_a_store_that_fails_in_the_middle_costs_the_snapshot_alone(network: Network, disk: Disk, tmp_path: Path):
    """Nothing of it is left, what was dirty is dirty again, and the next one is whole."""
    owner = _start(network, tmp_path)
    _hang(network, disk, owner)
    disk.trouble = "fail"
    disk.healed.set()
    _until(owner, lambda: owner.shard.owned[0].taking.failures == 1)
    assert owner.image(0).freeze is None
    disk.heal()
    assert list((tmp_path / "social").rglob("*.parquet")) == []
    network.clock.now += 100_000
    _until(owner, lambda: owner.shard.owned[0].taking.published == 1)

    assert network.store.manifests(0)[0].digest == owner.image(0).digest()


def test_a_state_that_cannot_be_encoded_ends_what_was_begun(network: Network, tmp_path: Path):
    """The writer is told that no more comes; the problem is that of the entity."""
    owner = _start(network, tmp_path)
    last = owner.image(0).entities["user"]
    next(reversed(last.values())).name = 7
    owner.shard.begin_snapshot(0)
    _until(owner, lambda: owner.shard.owned[0].taking.failures == 1)

    assert "Expected `str`" in owner.shard.owned[0].taking.problem
    assert network.store.manifests(0) == []


def test_a_partition_that_moves_does_not_hold_up_the_writer(network: Network, disk: Disk, tmp_path: Path):
    """The copy of one partition ends with its owner; the other partition has its snapshot."""
    owner = _start(network, tmp_path)
    _hang(network, disk, owner)
    newer = network.prepare([0])
    disk.heal()
    assert newer.shard.recover()
    disk.trouble = "hang"
    _until(owner, lambda: owner.states[0] == "moved")
    disk.heal()
    owner.shard.begin_snapshot(1)
    _until(owner, lambda: owner.shard.owned[1].taking.published == 1)

    assert network.store.manifests(1)[0].digest == owner.image(1).digest()


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "at once"])
def test_a_stop_in_the_middle_ends(network: Network, disk: Disk, tmp_path: Path, clean: bool):
    """A clean one when all is written, any other at once, with nothing of it."""
    owner = _start(network, tmp_path)
    _hang(network, disk, owner)
    disk.heal()
    owner.stop(clean=clean)

    assert [len(network.store.manifests(p)) for p in range(2)] == ([1, 1] if clean else [0, 0])


def _about_to_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, stop_within: float
) -> tuple[Disk, Network, Owner]:
    """A shard that has users, and a store that takes nothing any more."""
    disk = Disk(tmp_path / "social")
    network = Network(2, store=_store(disk))
    for number in range(USERS):
        network.send(f"user{number}", Register(name=f"User {number}"))
    owner = _start(network, tmp_path)
    monkeypatch.setattr(type(owner.shard._policy), "stop_within", stop_within)
    disk.trouble = "hang"
    return disk, network, owner


def test_a_clean_stop_gives_a_store_that_hangs_up_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """After the time for a stop the shard ends all the same; both partitions may have been waiting for one writer."""
    disk, network, owner = _about_to_hang(tmp_path, monkeypatch, stop_within=0.5)
    for partition in range(2):
        owner.shard.begin_snapshot(partition)
    started = time.monotonic()
    owner.stop()

    assert time.monotonic() - started < DEADLINE_S / 2
    assert [owner.shard.owned[p].taking.problem for p in range(2)] == [
        "The snapshot store has not taken it in time."
    ] * 2
    disk.heal()
    network.close()


def test_a_stop_with_a_savepoint_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Found by `make pipeline`: it gave up like any other stop, while whoever asked would have waited for an hour."""
    disk, network, owner = _about_to_hang(tmp_path, monkeypatch, stop_within=0.1)
    healed = threading.Timer(1.0, disk.heal)
    healed.start()
    owner.stop(savepoint="noon")
    healed.join()

    assert [network.store.manifests(p)[0].savepoint for p in range(2)] == ["noon", "noon"]
    network.close()
