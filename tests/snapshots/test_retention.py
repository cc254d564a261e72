"""What is kept: the last ones, every savepoint, and all that these need; and when nothing is removed."""

from __future__ import annotations

from pathlib import Path

import pytest
from engram.errors import Corrupt, Unavailable
from engram.snapshots.files import FileSnapshots, FileStorage
from engram.snapshots.manifest import Manifest, PartEntry
from engram.snapshots.parted import PartedSnapshots
from engram.snapshots.retention import superfluous
from hypothesis import given
from hypothesis import strategies as st

from tests.snapshots.test_increments import History


def _manifest(offsets: list[int], savepoint: str) -> Manifest:
    """Of the last offset, going on from the others."""
    names = [f"{offset:015}-{offset:08x}" for offset in offsets]
    kinds = [(name, "entities") for name in names] + [(names[-1], "memory")]
    parts = [PartEntry(name=f"{name}/{kind}", kind=kind, size=1, sha256="") for name, kind in kinds]
    fields = {"app": "a", "app_version": 1, "partition": 0, "epoch": 0, "digest": "", "entities": 1, "changed": 1}
    return Manifest(offset=offsets[-1], created=0, parts=parts, savepoint=savepoint, **fields)


_HISTORIES = st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=12)


@given(history=_HISTORIES, keep=st.integers(1, 4), verified=st.integers(0, 11), unreadable=st.sets(st.integers(0, 11)))
def test_nothing_that_a_kept_manifest_names_is_removed(
    history: list[tuple[int, bool]], keep: int, verified: int, unreadable: set[int]
):
    """Whatever goes on from what: of the manifests stay the last, the savepoints and those not older than what was
    verified; with every folder that one of these names, and those of manifests that cannot be read."""
    made = []
    for number, (before, savepoint) in enumerate(history):
        chain = list(range(max(0, number - before), number + 1))
        made.append(_manifest([number] if savepoint else chain, "kept" if savepoint else ""))
    manifests = {manifest.name: manifest for n, manifest in enumerate(made) if n not in unreadable}
    checked = made[min(verified, len(made) - 1)]
    names = [name for manifest in made for name in (manifest.name, f"{manifest.name}.json")]

    gone = superfluous([*names, "000000000000000-00000000.damaged", "notes.txt"], manifests, checked, keep=keep)

    plain = [name for name in sorted(manifests, reverse=True) if not manifests[name].savepoint]
    left = {n: m for n, m in manifests.items() if m.savepoint or n in plain[:keep] or n >= checked.name}
    assert {name for name in gone if name.endswith(".json")} == {f"{name}.json" for name in manifests.keys() - left}
    needed = set().union(*(manifest.folders for manifest in left.values()))
    needed |= {made[number].name for number in unreadable if number < len(made)}
    folders = {manifest.name for manifest in made}
    assert {name for name in gone if name in folders} == {f for f in folders - needed if f < checked.name}
    assert gone == sorted(gone, key=lambda name: not name.endswith(".json")), "manifests go first"


def test_savepoints_stay_beside_the_last_three(tmp_path: Path):
    """Old savepoints and the newest three; of the folders those that these need, and all can be loaded."""
    history = History(tmp_path)
    for offset in range(2, 20):
        history.change(offset, [f"key {offset}"], savepoint="kept" if offset in (3, 9) else "")

    kept = history.store.manifests(0)
    assert [manifest.offset for manifest in kept] == [19, 18, 17, 9, 3]
    assert history.folders() == set().union(*(manifest.folders for manifest in kept))
    for manifest in kept:
        found = {row.key: row for row in history.store.read(manifest).contents.entities}
        assert found == history.published[manifest.offset]


def test_a_savepoint_has_one_part_and_a_digest(tmp_path: Path):
    """It needs no other snapshot: whatever goes wrong with what came before it."""
    history = History(tmp_path)
    history.change(2, ["key 1"])
    saved = history.change(3, ["key 2"], savepoint="alone")

    assert (saved.folders, len(saved.entity_parts), saved.entities) == ({saved.name}, 1, len(history.state))
    assert saved.digest


def test_a_removed_savepoint_takes_its_folder_along_when_nobody_goes_on_from_it(tmp_path: Path):
    """Not before: the snapshots after it need the folder for as long as they are there."""
    history = History(tmp_path, keep=1)
    saved = history.change(2, ["key 1"], savepoint="for a while")
    history.change(3, ["key 2"])
    history.store.remove(saved)
    needed = history.folders()
    alone = history.change(4, list(history.state), savepoint="alone")
    history.change(5, list(history.state))
    history.store.remove(alone)

    assert saved.name in needed
    assert history.folders() == {history.newest.name}
    assert [manifest.offset for manifest in history.store.manifests(0)] == [5]


def test_a_base_that_another_process_wrote_is_read_back_before_going_on_from_it(tmp_path: Path):
    """Otherwise a snapshot would be called good whose base nobody has looked at."""
    history = History(tmp_path, keep=1)
    history.change(2, ["key 1"])
    base = history.folder / history.newest.entity_parts[0].name
    data = base.read_bytes()
    base.write_bytes(data[:-9] + b"?" + data[-8:])
    history.store = FileSnapshots(tmp_path, "things", keep=1)

    with pytest.raises(Corrupt, match="does not match its checksum"):
        history.change(3, ["key 2"])
    assert [manifest.offset for manifest in history.store.manifests(0)] == [2]


class _NoLists(FileStorage):
    """Does not say what it has while `away`."""

    away = False

    def names(self, folder: str) -> list[str]:
        if self.away:
            raise Unavailable("No answer.")
        return super().names(folder)


def test_a_store_that_does_not_say_what_it_has_loses_nothing(tmp_path: Path):
    """The snapshot is published, and what is old goes with the next one."""
    history = History(tmp_path, keep=1)
    storage = _NoLists(tmp_path / "things")
    history.store = PartedSnapshots(storage, "things", keep=1)
    storage.away = True
    history.change(2, ["key 1"])
    storage.away = False
    both = [manifest.offset for manifest in history.store.manifests(0)]
    history.change(3, ["key 1"])

    assert both == [2, 1]
    assert [manifest.offset for manifest in history.store.manifests(0)] == [3]


def test_what_crashes_have_left_is_removed_in_time(tmp_path: Path):
    """Half-written files and folders without a manifest go with the next snapshot, unless they may be of a newer one;
    what is not ours is left alone."""
    history = History(tmp_path)
    old, new = "000000000000001-00000000", "000000000000009-00000000"
    for name in (old, new):
        (history.folder / name).mkdir()
        (history.folder / f".{name}.json.12345678").touch()
    (history.folder / "README.txt").touch()
    history.change(2, ["key 1"])

    left = {path.name for path in history.folder.iterdir() if path.is_file() or path.name in (old, new)}
    assert left == {"README.txt", new, f".{new}.json.12345678", *(f"{m.name}.json" for m in history.store.manifests(0))}
