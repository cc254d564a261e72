"""Snapshots that go on from others: what is written, what is kept, and what damage does."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from engram.errors import Corrupt
from engram.image.contents import EntityRow, Memory, columns_of
from engram.snapshots.base import Contents
from engram.snapshots.disk import LocalDisk
from engram.snapshots.files import FileSnapshots
from engram.snapshots.manifest import Manifest
from engram.snapshots.parted import PartedSnapshots

ENTITIES = 2000


class History:
    """A store, and every state that was ever published to it, by offset."""

    def __init__(self, folder: Path, *, keep: int = 3, entities: int = ENTITIES) -> None:
        self.folder = folder / "things" / "partition-0000"
        self.store: PartedSnapshots = FileSnapshots(folder, "things", keep=keep)
        self.state = {f"key {n}": _row(f"key {n}", 0) for n in range(entities)}
        self.published: dict[int, dict[str, EntityRow]] = {}
        self.newest = self._publish(1, list(self.state.values()), None)

    def change(self, offset: int, keys: list[str], *, savepoint: str = "") -> Manifest:
        changed = [_row(key, offset) for key in keys]
        self.state |= {row.key: row for row in changed}
        self.newest = self._publish(offset, changed, self.newest, savepoint)
        return self.newest

    def _publish(self, offset: int, rows: list[EntityRow], base: Manifest | None, savepoint: str = "") -> Manifest:
        memory = Memory(
            offset=offset,
            epoch=0,
            app_version=1,
            time=0,
            sessions=[],
            keys=[],
            origins=[],
            quarantine=[],
            quarantined=0,
        )
        contents = Contents(columns_of(rows), memory, len(self.state), base, savepoint)
        manifest = self.store.publish(0, contents, created=0)
        self.published[offset] = dict(self.state)
        return manifest

    def folders(self) -> set[str]:
        return {path.name for path in self.folder.iterdir() if path.is_dir()}


def _row(key: str, offset: int) -> EntityRow:
    # Text that does not compress away, so that sizes say something.
    return EntityRow("thing", key, 1, b'{"text":"%s"}' % random.Random(f"{key} {offset}").randbytes(40).hex().encode())


def test_bytes_follow_what_has_changed(tmp_path: Path):
    """A snapshot of a hundred changed entities takes a hundredth of one of ten thousand."""
    history = History(tmp_path, entities=20_000)
    few = history.change(2, [f"key {n}" for n in range(100)])
    many = history.change(3, [f"key {n}" for n in range(10_000)])

    assert few.entity_parts[-1].size * 60 < many.entity_parts[-1].size
    assert few.written_bytes < history.newest.entity_parts[0].size / 50


def test_a_base_is_written_anew_in_time(tmp_path: Path):
    """When what goes on from it has grown as large as it, or comes in many parts; nothing is lost by that."""
    history = History(tmp_path)
    changes = {offset: [f"key {offset % 7}", f"new {offset}"] for offset in range(2, 60)}
    parts = [len(history.change(offset, keys).entity_parts) for offset, keys in changes.items()]
    large = history.change(60, list(history.state))

    assert max(parts) == 16
    assert parts.count(1) == 3, "a new base for every sixteenth"
    assert len(large.entity_parts) == 1
    loaded = history.store.newest(0)
    assert loaded is not None
    assert {row.key: row for row in loaded.contents.entities} == history.state


def test_folders_stay_while_a_manifest_names_them(tmp_path: Path):
    """Of old snapshots only what newer ones go on from is kept; all of the newest three can be loaded."""
    history = History(tmp_path)
    for offset in range(2, 12):
        history.change(offset, ["key 1"])

    kept = history.store.manifests(0)
    named = {part.name.partition("/")[0] for manifest in kept for part in manifest.parts}
    assert [manifest.offset for manifest in kept] == [11, 10, 9]
    assert history.folders() == named
    for manifest in kept:
        loaded = history.store.newest(0)
        assert loaded is not None
        assert {row.key: row for row in loaded.contents.entities} == history.published[manifest.offset]
        next(history.folder.glob(f"{manifest.offset:015}-*.json")).unlink()

    history.change(40, list(history.state))
    history.change(41, ["key 1"])
    history.change(42, ["key 1"])
    assert len(history.folders()) == 3, "the old base goes when nobody names it"


def test_damage_to_a_part_that_all_go_on_from_leaves_none(tmp_path: Path):
    """The base is part of every one: they are set aside, and recovery is a replay from the beginning."""
    history = History(tmp_path)
    history.change(2, ["key 1"])
    base = history.folder / history.newest.entity_parts[0].name
    base.write_bytes(base.read_bytes()[:-1] + b"?")

    assert history.store.newest(0) is None
    assert len(list(history.folder.glob("*.damaged"))) == 2


def test_damage_to_a_later_part_leaves_the_snapshot_before(tmp_path: Path):
    """Those that do not need the part are as good as ever."""
    history = History(tmp_path)
    history.change(2, ["key 1"])
    history.change(3, ["key 2"])
    (history.folder / history.newest.entity_parts[-1].name).unlink()

    loaded = history.store.newest(0)
    assert loaded is not None
    assert loaded.manifest.offset == 2


def test_nothing_is_retired_for_a_snapshot_that_cannot_be_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A disk that does not keep what was written must not cost the snapshots that it has kept: nothing is published."""
    history = History(tmp_path, keep=1)
    history.change(2, ["key 1"])
    before = history.folders()
    monkeypatch.setattr(LocalDisk, "write", lambda _, path, data: Path(path).write_bytes(data[:-1] + b"?"))
    with pytest.raises(Corrupt, match="does not match its checksum"):
        history.change(3, ["key 2"])
    monkeypatch.undo()

    loaded = history.store.newest(0)
    assert loaded is not None
    assert loaded.manifest.offset == 2
    assert history.folders() == before
