"""A snapshot store that fails, hangs or is full: commands go on, and when it is back, so do snapshots."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engram.errors import Unavailable
from engram.shard.requests import PartitionStatus
from engram.snapshots.disk import LocalDisk
from engram.snapshots.files import FileStorage
from engram.snapshots.open import open_store
from engram.snapshots.parted import PartedSnapshots
from structlog.testing import capture_logs

from sample_apps.social.commands import Publish, Register
from tests.shard.network import Network, Owner
from tests.snapshots.s3 import S3Server

DEADLINE_S = 60.0


class Disk(FileStorage):
    """A disk that can be told to fail, to hang or to be full, in the middle of any of its works."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.trouble = ""
        self.tried = 0
        self.healed = threading.Event()

    def write(self, path: str, data: bytes) -> None:
        self._suffer()
        super().write(path, data)

    def read(self, path: str) -> bytes:
        self._suffer()
        return super().read(path)

    def heal(self) -> None:
        self.trouble = ""
        self.healed.set()

    def _suffer(self) -> None:
        self.tried += bool(self.trouble)
        if self.trouble == "fail":
            raise Unavailable("Input/output error")
        if self.trouble == "hang":
            assert self.healed.wait(DEADLINE_S)


class Load:
    """A shard of one partition under load: a clock that runs with it, and a snapshot for every ten commands."""

    def __init__(self, store: PartedSnapshots) -> None:
        self.store = store
        self.network = Network(1, store=store)
        self.owner: Owner = self.network.start(snapshot_every=10)
        self.network.send("ada", Register(name="Ada"))

    def handle(self, commands: int) -> None:
        """Sends as many, and sees them handled, one by one."""
        for number in range(commands):
            position = self.network.send("ada", Publish(text=str(number)))
            self.network.clock.now += 100
            self.owner.step()
            assert self.owner.image(0).offset > position.offset, "the command was not handled at once"

    def until(self, ready: Callable[[], bool]) -> None:
        """Under load until something is true."""
        deadline = time.monotonic() + DEADLINE_S
        while not ready():
            assert time.monotonic() < deadline, "it did not come true in time"
            self.handle(1)
            time.sleep(0.005)  # the writer's thread gets its turn

    @property
    def status(self) -> PartitionStatus:
        return self.owner.shard.owned[0].status()

    def check_goes_on(self, outage: int) -> None:
        """A snapshot of what came after the outage is published; it is good, and what it leads to is the live image."""
        self.until(lambda: self.status.snapshot > outage)
        manifest = self.store.manifests(0)[0]
        assert manifest.offset == self.status.snapshot
        loaded = self.store.read(manifest)
        assert self.network.replayed(0, loaded).digest() == self.owner.image(0).digest()
        assert (self.status.snapshot_failures, self.status.snapshot_problem) == (0, "")


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path / "social")


@pytest.fixture
def load(disk: Disk) -> Iterator[Load]:
    under = Load(PartedSnapshots(disk, "social"))
    under.until(lambda: under.status.snapshot > 0)
    yield under
    disk.heal()
    under.network.close()


def test_a_store_that_fails_costs_snapshots_and_no_command(load: Load, disk: Disk):
    """It is tried again and again, with pauses that grow; status says how often, and why."""
    disk.trouble = "fail"
    load.until(lambda: load.status.snapshot_failures == 3)
    failing = load.status
    tried = disk.tried
    load.handle(15)  # within the pause of four seconds: 1.5 of the shard's
    assert (failing.state, disk.tried) == ("serving", tried), "it is not hammered"
    assert "could not be written to" in failing.snapshot_problem
    assert "Input/output error" in failing.snapshot_problem

    disk.heal()
    load.check_goes_on(load.owner.image(0).offset)


def test_a_store_that_hangs_costs_snapshots_and_no_command(load: Load, disk: Disk):
    """One snapshot waits, no second one is begun, and commands are handled as ever; status and log tell of it."""
    disk.trouble = "hang"
    load.until(lambda: disk.tried > 0)
    with capture_logs() as told:
        load.handle(500)
    assert disk.tried == 1
    assert load.network.clock() - load.status.snapshot_since > 30_000
    assert [line["event"] for line in told] == ["snapshot_behind", "snapshot_slow"], "each once"

    disk.heal()
    load.check_goes_on(load.owner.image(0).offset)


def test_a_full_disk_costs_snapshots_and_no_command(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Half of the bytes find room and the rest does not: nothing of it is left, so that others find that room."""
    before = sorted(tmp_path.rglob("*"))
    full = threading.Event()

    def write(_: LocalDisk, path: str, data: bytes) -> None:
        full.set()
        Path(path).write_bytes(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(LocalDisk, "write", write)
    load.until(full.is_set)
    load.until(lambda: load.status.snapshot_failures >= 2 and not load.owner.shard.owned[0].taking.writing)
    load.handle(5)
    assert "No space left on device" in load.status.snapshot_problem
    assert sorted(tmp_path.rglob("*")) == before

    monkeypatch.undo()
    load.check_goes_on(load.owner.image(0).offset)


def test_a_store_that_hangs_does_not_hold_up_a_stop_for_ever(load: Load, disk: Disk, monkeypatch: pytest.MonkeyPatch):
    """The shard waits for its last snapshot as long as the policy says, tells that there is none, and ends."""
    disk.trouble = "hang"
    load.until(lambda: disk.tried > 0)
    monkeypatch.setattr(type(load.owner.shard._policy), "stop_within", 0.2)
    load.owner.stop(clean=True)

    status = load.owner.line.announced[-1].partitions[0]
    assert "has not taken it in time" in status.snapshot_problem
    assert load.owner.line.closed


def test_an_s3_server_that_hangs_costs_snapshots_and_no_command(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A real one, stopped in the middle of everything, as a network that swallows packets would do it."""
    monkeypatch.setattr("engram.snapshots.remote._WRITE_S", 1.0)
    quickly = {"connect_timeout": 1, "read_timeout": 1, "retries": {"total_max_attempts": 1}}
    monkeypatch.setattr("engram.snapshots.remote._S3_DEADLINES", quickly)
    monkeypatch.setattr("s3fs.S3FileSystem.retries", 1)
    load = Load(open_store(f"s3://snapshots{tmp_path}", "social"))
    load.until(lambda: load.status.snapshot > 0)
    s3.pause()
    try:
        load.until(lambda: load.status.snapshot_failures > 0)
        load.handle(100)
    finally:
        s3.go_on()
    load.check_goes_on(load.owner.image(0).offset)
    load.network.close()
