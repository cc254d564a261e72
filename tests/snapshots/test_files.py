"""Snapshots as local files: what is on the disk, and what becomes of damage."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from engram.codec.codec import Codec
from engram.errors import Misuse, Unavailable
from engram.image.image import Image
from engram.snapshots.files import FileSnapshots
from engram.testing import SnapshotConformance
from hypothesis import given, settings
from hypothesis import strategies as st

from sample_apps.social import app
from tests.snapshots.contents import social_contents

CREATED = 1_700_000_000_000


class TestFileSnapshots(SnapshotConformance):
    def make(self, tmp_path, app):
        return FileSnapshots(tmp_path, app)

    def reopen(self, store, tmp_path, app):
        return FileSnapshots(tmp_path, app)


@pytest.fixture
def store(tmp_path):
    return FileSnapshots(tmp_path, "social")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "social" / "partition-0000"


def publish(store: FileSnapshots, *offsets: int) -> None:
    for offset in offsets:
        store.publish(0, social_contents(offset), created=CREATED)


def manifest_path(folder: Path, offset: int) -> Path:
    [path] = folder.glob(f"{offset:015}-*.json")
    return path


def part_path(folder: Path, offset: int, part: str) -> Path:
    return manifest_path(folder, offset).with_suffix("") / part


def flip(path: Path, at: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 1 << bit
    path.write_bytes(data)


def change_manifest(path: Path, **fields: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


# The damages below are done to the newer of two snapshots, at offsets 2 and 5.


def flip_entities(folder):
    flip(part_path(folder, 5, "entities.parquet"), 200)


def flip_memory(folder):
    flip(part_path(folder, 5, "memory.json"), 20)


def truncate_entities(folder):
    path = part_path(folder, 5, "entities.parquet")
    path.write_bytes(path.read_bytes()[:-50])


def empty_memory(folder):
    part_path(folder, 5, "memory.json").write_bytes(b"")


def lengthen_memory(folder):
    path = part_path(folder, 5, "memory.json")
    path.write_bytes(path.read_bytes() + b" ")


def lose_a_part(folder):
    part_path(folder, 5, "entities.parquet").unlink()


def lose_all_parts(folder):
    shutil.rmtree(manifest_path(folder, 5).with_suffix(""))


def take_the_parts_of_another(folder):
    shutil.copy(part_path(folder, 2, "entities.parquet"), part_path(folder, 5, "entities.parquet"))


def break_the_manifest(folder):
    manifest_path(folder, 5).write_bytes(b'{"format": 1, "app": "soc')


def empty_the_manifest(folder):
    manifest_path(folder, 5).write_bytes(b"")


def garble_the_manifest(folder):
    manifest_path(folder, 5).write_bytes(b"\xff\xfe\x00garbage")


def claim_another_app(folder):
    change_manifest(manifest_path(folder, 5), app="banking")


def claim_another_partition(folder):
    change_manifest(manifest_path(folder, 5), partition=1)


def claim_a_later_format(folder):
    change_manifest(manifest_path(folder, 5), format=99)


def claim_another_offset(folder):
    change_manifest(manifest_path(folder, 5), offset=6)


def claim_another_digest(folder):
    change_manifest(manifest_path(folder, 5), digest="0" * 64)


def claim_no_parts(folder):
    change_manifest(manifest_path(folder, 5), parts=[])


def claim_a_part_elsewhere(folder):
    manifest = json.loads(manifest_path(folder, 5).read_text())
    manifest["parts"][0]["name"] = "../entities.parquet"
    manifest_path(folder, 5).write_text(json.dumps(manifest))


DAMAGES = [
    flip_entities,
    flip_memory,
    truncate_entities,
    empty_memory,
    lengthen_memory,
    lose_a_part,
    lose_all_parts,
    take_the_parts_of_another,
    break_the_manifest,
    empty_the_manifest,
    garble_the_manifest,
    claim_another_app,
    claim_another_partition,
    claim_a_later_format,
    claim_another_offset,
    claim_another_digest,
    claim_no_parts,
    claim_a_part_elsewhere,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_snapshot_is_set_aside_and_the_one_before_is_used(store, folder, damage):
    """Whatever was damaged, it is found; the one before it is loaded, and the damaged is kept as .damaged."""
    publish(store, 2, 5)
    damaged = manifest_path(folder, 5)
    damage(folder)
    loaded = store.newest(0)
    assert loaded is not None
    assert loaded.manifest.offset == 2
    assert sorted(loaded.contents.entities) == sorted(social_contents(2).entities)
    assert damaged.with_suffix(".damaged").exists()
    assert not damaged.exists()
    assert [manifest.offset for manifest in store.manifests(0)] == [2]


@given(part=st.sampled_from(["entities.parquet", "memory.json"]), at=st.integers(0, 10_000), bit=st.integers(0, 7))
@settings(max_examples=50)
def test_any_flipped_bit_of_a_part_is_found(tmp_path_factory, part, at, bit):
    """No single bit of a part can change unnoticed."""
    folder = tmp_path_factory.mktemp("snapshots")
    store = FileSnapshots(folder, "social")
    publish(store, 2)
    flip(part_path(folder / "social" / "partition-0000", 2, part), at, bit)
    assert store.newest(0) is None


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE], ids=errno.errorcode.get)
def test_a_file_that_cannot_be_read_is_damaged_and_a_disk_in_trouble_is_not(store, folder, monkeypatch, number):
    """A bad sector costs one snapshot; a process without free descriptors costs none: it is started again."""
    publish(store, 2, 5)
    real_read = Path.read_bytes

    def read(self):
        if "5-" in str(self.relative_to(folder)) and self.name == "memory.json":
            raise OSError(number, "no")
        return real_read(self)

    monkeypatch.setattr(Path, "read_bytes", read)
    if number == errno.EIO:
        assert store.newest(0).manifest.offset == 2
    else:
        with pytest.raises(Unavailable):
            store.newest(0)
    monkeypatch.undo()
    assert [manifest.offset for manifest in store.manifests(0)] == ([2] if number == errno.EIO else [5, 2])


def test_when_all_are_damaged_there_is_none(store, folder):
    """Without a whole snapshot the log is replayed from zero: there is none, and nothing is raised."""
    publish(store, 2, 5)
    flip(part_path(folder, 2, "memory.json"), 3)
    flip(part_path(folder, 5, "memory.json"), 3)
    assert store.newest(0) is None
    assert len(list(folder.glob("*.damaged"))) == 2


def test_an_unreadable_manifest_is_not_listed(store, folder):
    """A manifest that cannot be read is no manifest: the others are listed all the same."""
    publish(store, 2, 5)
    break_the_manifest(folder)
    assert [manifest.offset for manifest in store.manifests(0)] == [2]


def test_without_its_manifest_a_snapshot_does_not_exist(store, folder):
    """Parts without a manifest are what a crash before the last step leaves: not seen, not in the way."""
    publish(store, 2, 5)
    manifest_path(folder, 5).unlink()
    loaded = store.newest(0)
    assert loaded is not None
    assert loaded.manifest.offset == 2
    assert list(folder.glob("*.damaged")) == []


def test_half_written_files_are_not_seen(store, folder):
    """Files under temporary names are what a crash during a write leaves: not seen, not in the way."""
    publish(store, 2)
    (folder / ".000000000000009-00ff00ff.json.1a2b3c4d").write_bytes(b'{"format": 1, "app"')
    unfinished = folder / "000000000000009-00ff00ff"
    unfinished.mkdir()
    (unfinished / ".entities.parquet.1a2b3c4d").write_bytes(b"PAR1")
    loaded = store.newest(0)
    assert loaded is not None
    assert loaded.manifest.offset == 2
    assert [manifest.offset for manifest in store.manifests(0)] == [2]
    publish(store, 9)
    assert [manifest.offset for manifest in store.manifests(0)] == [9, 2]


def test_nothing_temporary_is_left_by_a_publish(store, folder):
    """After a publish there are the manifest and the two parts, and nothing else."""
    publish(store, 2)
    manifest = manifest_path(folder, 2)
    assert {str(path.relative_to(folder)) for path in folder.rglob("*")} == {
        manifest.name,
        manifest.stem,
        f"{manifest.stem}/entities.parquet",
        f"{manifest.stem}/memory.json",
    }


def test_the_manifest_is_written_last(store, folder, monkeypatch):
    """When the manifest comes to its name, both parts are whole under theirs."""
    parts_then: list[list[str]] = []
    real_rename = Path.rename

    def rename(self, target):
        if Path(target).suffix == ".json" and Path(target).parent == folder:
            parts_then.append(sorted(path.name for path in Path(target).with_suffix("").iterdir()))
        return real_rename(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    publish(store, 2)
    assert parts_then == [["entities.parquet", "memory.json"]]


def test_the_newest_three_are_kept(store, folder):
    """Older snapshots are removed, manifest and parts; three stay."""
    publish(store, 1, 2, 3, 4, 5)
    assert [manifest.offset for manifest in store.manifests(0)] == [5, 4, 3]
    assert sorted(path.name[:15] for path in folder.iterdir() if path.is_dir()) == [
        f"{offset:015}" for offset in (3, 4, 5)
    ]


def test_damaged_ones_are_not_counted_among_those_kept(store, folder):
    """A snapshot that was set aside is not one of the three, and retention leaves it for people to look at."""
    publish(store, 1, 2, 3)
    flip(part_path(folder, 3, "memory.json"), 3)
    store.newest(0)
    publish(store, 4)
    assert [manifest.offset for manifest in store.manifests(0)] == [4, 2, 1]
    assert len(list(folder.glob("*.damaged"))) == 1


def test_the_entities_are_read_without_the_apps_classes(store, folder):
    """Any Parquet reader sees entity, key, version and state, the state being JSON text."""
    publish(store, 2)
    table = pq.read_table(part_path(folder, 2, "entities.parquet"))
    rows = table.to_pylist()
    assert table.column_names == ["entity", "key", "version", "state", "rows"]
    assert [(row["entity"], row["key"], row["version"]) for row in rows] == [
        ("user", "user-0", "3"),
        ("user", "user-1", "3"),
    ]
    assert json.loads(rows[0]["state"])["name"] == "Somebody"


def test_a_loaded_snapshot_fills_an_image_of_the_same_digest(store):
    """An image that is loaded from a snapshot has the digest that the manifest says."""
    publish(store, 5)
    loaded = store.newest(0)
    assert loaded is not None
    image = Image(0, Codec(app))
    image.load_encoded(loaded.columns, loaded.memory)
    assert image.digest() == loaded.manifest.digest
    assert image.offset == 5


def test_two_apps_share_a_folder(tmp_path):
    """Snapshots of two apps in one folder do not meet."""
    publish(FileSnapshots(tmp_path, "social"), 2)
    assert FileSnapshots(tmp_path, "banking").newest(0) is None


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    """Where no folder can be, no snapshot can be kept: refused at the start, naming the place."""
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Misuse, match=rf"cannot be kept in {tmp_path / 'file' / 'folder'}"):
        FileSnapshots(tmp_path / "file" / "folder", "social")


def test_a_write_that_fails_is_unavailable_and_leaves_the_others(store, folder):
    """When the disk does not do its part, `publish` says so, and what was there stays."""
    publish(store, 2)
    kept = folder.rename(folder.with_name("moved"))
    folder.write_text("in the way")
    with pytest.raises(Unavailable, match="snapshot of partition 0 could not be written"):
        publish(store, 5)
    folder.unlink()
    kept.rename(folder)
    loaded = store.newest(0)
    assert loaded is not None
    assert loaded.manifest.offset == 2
