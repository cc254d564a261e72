"""A copy of remote snapshots on the own machine: for a fast start, and nothing depends on it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from engram.errors import Unavailable
from engram.snapshots.base import SnapshotStore
from engram.snapshots.files import FileStorage
from engram.snapshots.open import open_store
from engram.snapshots.parted import PartedSnapshots
from engram.snapshots.remote import RemoteStorage
from engram.testing import SnapshotConformance

from tests.snapshots.contents import social_contents

CREATED = 1_700_000_000_000


class TestWithCopy(SnapshotConformance):
    """The contract holds with a copy as well."""

    def make(self, tmp_path: Path, app: str) -> SnapshotStore:
        return open_store(f"memory://{tmp_path}", app, copy=tmp_path / "copy")

    def reopen(self, store: SnapshotStore, tmp_path: Path, app: str) -> SnapshotStore:
        return self.make(tmp_path, app)


class Far(RemoteStorage):
    """A store elsewhere, with a note of what was read from it; it is not there while `away`, or for
    some `refusals`."""

    def __init__(self, url: str, app: str) -> None:
        super().__init__(url, app)
        self.parts_read: list[str] = []
        self.away = False
        self.refusals = 0

    def read(self, path: str) -> bytes:
        self._answer()
        if not path.endswith(".json") or path.endswith("memory.json"):
            self.parts_read.append(path)
        return super().read(path)

    def names(self, folder: str) -> list[str]:
        self._answer()
        return super().names(folder)

    def _answer(self) -> None:
        refuse, self.refusals = self.refusals > 0, max(0, self.refusals - 1)
        if self.away or refuse:
            raise Unavailable("No route to the store.")


class Machine:
    """A store elsewhere, with snapshots at offsets 2 and 5 that were published from here."""

    def __init__(self, folder: Path) -> None:
        self.far = Far(f"memory://{folder}", "social")
        self.copy = folder / "copy" / "social"
        store = self.started()
        for offset in (2, 5):
            store.publish(0, social_contents(offset), created=CREATED)
        self.published = store.manifests(0)[0]
        self.far.parts_read.clear()

    def started(self) -> PartedSnapshots:
        return PartedSnapshots(self.far, "social", copy=FileStorage(self.copy))

    def loads(self, offset: int) -> None:
        loaded = self.started().newest(0)
        assert loaded is not None
        assert sorted(loaded.contents.entities) == sorted(social_contents(offset).entities)
        assert loaded.memory.offset == offset

    def part(self, name: str) -> Path:
        return self.copy / "partition-0000" / self.published.name / name


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_start_on_the_same_machine_reads_no_part_from_afar(machine: Machine):
    """The manifest comes from the store, and the parts that it names from the copy."""
    machine.loads(5)

    assert machine.far.parts_read == []


@pytest.mark.parametrize("damage", [b"", b"?" * 2000, None], ids=["empty", "garbage", "missing"])
def test_what_is_wrong_with_the_copy_comes_from_the_store(machine: Machine, damage: bytes | None):
    """By its checksum; and then the copy is right again."""
    path = machine.part("entities.parquet")
    path.unlink()
    if damage is not None:
        path.write_bytes(damage)
    machine.loads(5)
    first = list(machine.far.parts_read)
    machine.loads(5)

    assert [read.rpartition("/")[2] for read in first] == ["entities.parquet"]
    assert machine.far.parts_read == first


def test_a_machine_without_a_copy_gets_one(machine: Machine):
    """As after a move to another machine: read from afar once."""
    shutil.rmtree(machine.copy)
    machine.loads(5)
    read = len(machine.far.parts_read)
    machine.loads(5)

    assert (read, len(machine.far.parts_read)) == (2, 2)


def test_the_store_says_which_snapshot_is_the_newest(machine: Machine):
    """Another machine may have gone on meanwhile, or what is here may never have got there."""
    elsewhere = PartedSnapshots(machine.far, "social")
    elsewhere.publish(0, social_contents(9), created=CREATED)
    machine.loads(9)
    newest = elsewhere.manifests(0)[0]
    machine.far.remove(f"partition-0000/{newest.name}.json")

    machine.loads(5)


def test_when_the_store_is_away_a_start_takes_the_copy(machine: Machine):
    """Any whole snapshot with the log after it gives the right image, so there is no need to wait."""
    machine.far.away = True
    machine.loads(5)

    assert [manifest.offset for manifest in machine.started().manifests(0)] == [5, 2]


def test_a_damaged_copy_is_no_reason_to_set_aside_what_the_store_has(machine: Machine):
    """Also when the store comes back in the middle of a start."""
    (machine.copy / "partition-0000" / f"{machine.published.name}.json").write_text("?")
    machine.far.refusals = 1
    machine.loads(2)

    assert machine.far.size(f"partition-0000/{machine.published.name}.json")
    machine.loads(5)


def test_without_a_copy_a_start_waits_for_the_store(machine: Machine):
    """It is `Unavailable`, not empty: a replay of everything for want of an answer would be the worse choice."""
    machine.far.away = True

    with pytest.raises(Unavailable):
        PartedSnapshots(machine.far, "social").newest(0)


def test_the_copy_has_what_the_store_has_and_no_more(machine: Machine):
    """Retention goes over both; what another machine has published and removed is not kept here for ever."""
    for offset in (6, 7, 8):
        machine.started().publish(0, social_contents(offset), created=CREATED)

    far = {path.rpartition("/")[2] for path in machine.far.names("partition-0000")}
    assert {path.name for path in (machine.copy / "partition-0000").iterdir()} == far
    assert len(far) == 6


def test_a_copy_that_cannot_be_written_is_done_without(machine: Machine):
    """The snapshot is published, and the next start reads it from afar."""
    folder = machine.copy / "partition-0000"
    shutil.rmtree(folder)
    folder.write_text("in the way")
    machine.started().publish(0, social_contents(9), created=CREATED)

    machine.loads(9)


def test_where_no_copy_can_be_made_there_is_none(tmp_path: Path):
    """Such as on a machine of the cluster that does not have that path."""
    (tmp_path / "file").write_text("in the way")
    store = open_store(f"memory://{tmp_path}", "social", copy=tmp_path / "file" / "copy")
    store.publish(0, social_contents(2), created=CREATED)

    assert store.newest(0) is not None
