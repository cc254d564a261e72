"""The contract of a snapshot store as tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from engram.errors import Corrupt, Misuse
from engram.image.contents import (
    EntityRow,
    KeyRow,
    Memory,
    OriginRow,
    SessionRow,
    columns_of,
    digest_of,
)
from engram.image.quarantine import QuarantineRow
from engram.snapshots.base import Contents, SnapshotStore
from engram.snapshots.manifest import Manifest

APP = "conformance"
_CREATED = 1_700_000_000_000
_TEXTS = ["plain", "", "two words", 'quote"d', "new\nline", "nul\0", "ḗ\u2028", "😀", "a/b\\c", "null"]


class SnapshotConformance:
    """Inherit this in the tests of a snapshot store, and have the contract of `engram.snapshots.base` tested:

    class TestFileSnapshots(SnapshotConformance):
        def make(self, tmp_path, app): ...
        def reopen(self, store, tmp_path, app): ...
    """

    # How many snapshots go on from each other in a test: enough for a store to merge them, more than once.
    increments = 38

    def make(self, tmp_path: Path, app: str) -> SnapshotStore:
        """A new store for this test."""
        raise NotImplementedError

    def reopen(self, store: SnapshotStore, tmp_path: Path, app: str) -> SnapshotStore:
        """The store of this test once more, as another process would open it."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, tmp_path: Path) -> SnapshotStore:
        return self.make(tmp_path, APP)

    def test_what_is_set_aside_is_not_there(self, store: SnapshotStore, tmp_path: Path) -> None:
        """Neither listed nor loaded, whoever opens the store; the one before is the newest then."""
        before = store.publish(3, _contents(7, _TEXTS), created=_CREATED)
        after = store.publish(3, _contents(9, _TEXTS), created=_CREATED)
        store.set_aside(after)
        loaded = self.reopen(store, tmp_path, APP).newest(3)
        assert store.manifests(3) == [before]
        assert loaded is not None
        assert loaded.manifest == before

    def test_a_new_store_is_empty(self, store: SnapshotStore) -> None:
        """Before the first snapshot there is none."""
        assert store.newest(0) is None
        assert store.manifests(0) == []

    def test_a_snapshot_comes_back_whole(self, store: SnapshotStore, tmp_path: Path) -> None:
        """What was published is what another owner finds: entities in any order, and all of the memory."""
        contents = _contents(7, _TEXTS)
        store.publish(3, contents, created=_CREATED)
        loaded = self.reopen(store, tmp_path, APP).newest(3)
        assert loaded is not None
        assert sorted(loaded.contents.entities) == sorted(contents.entities)
        assert loaded.contents.memory == contents.memory

    def test_the_manifest_says_what_the_snapshot_is_of(self, store: SnapshotStore) -> None:
        """The manifest has app, partition, position, time, count and the digest of what is inside."""
        contents = _contents(42, ["a", "b"])
        manifest = store.publish(5, contents, created=_CREATED)
        loaded = store.newest(5)
        assert loaded is not None
        assert loaded.manifest == manifest
        assert manifest.model_dump(exclude={"format", "parts", "seal"}) == {
            "app": APP,
            "app_version": 2,
            "partition": 5,
            "offset": 42,
            "epoch": 1,
            "digest": digest_of(contents.entities, contents.memory),
            "entities": 2,
            "changed": 2,
            "created": _CREATED,
            "savepoint": "",
            "pause_ms": 0.0,
            "background_ms": 0.0,
        }
        assert digest_of(loaded.contents.entities, loaded.contents.memory) == manifest.digest

    def test_the_newest_is_the_one_that_has_come_farthest(self, store: SnapshotStore) -> None:
        """The snapshot with the greatest offset counts, as a number, whichever was published last."""
        for offset in (9, 1000, 99):
            store.publish(0, _contents(offset, [f"at {offset}"]), created=_CREATED)
        loaded = store.newest(0)
        assert loaded is not None
        assert loaded.contents == _contents(1000, ["at 1000"])

    def test_manifests_are_listed_newest_first(self, store: SnapshotStore) -> None:
        """`manifests` lists the published ones, from the greatest offset down."""
        published = {offset: store.publish(0, _contents(offset, ["a"]), created=_CREATED) for offset in (9, 1000, 99)}
        assert store.manifests(0) == [published[1000], published[99], published[9]]

    def test_partitions_are_kept_apart(self, store: SnapshotStore) -> None:
        """A snapshot of one partition is none of another's."""
        store.publish(1, _contents(5, ["one"]), created=_CREATED)
        store.publish(11, _contents(6, ["eleven"]), created=_CREATED)
        of_one, of_eleven = store.newest(1), store.newest(11)
        assert of_one is not None
        assert of_eleven is not None
        assert (of_one.contents, of_eleven.contents) == (_contents(5, ["one"]), _contents(6, ["eleven"]))
        assert [manifest.offset for manifest in store.manifests(1)] == [5]
        assert store.newest(0) is None

    def test_an_image_without_entities_has_a_snapshot_too(self, store: SnapshotStore) -> None:
        """A partition in which nothing has come into being is restored as such."""
        store.publish(0, _contents(1, []), created=_CREATED)
        loaded = store.newest(0)
        assert loaded is not None
        assert loaded.contents == _contents(1, [])

    def test_a_large_snapshot_comes_back(self, store: SnapshotStore) -> None:
        """Many entities, and some large ones, come back as they were."""
        contents = _contents(1, [f"key {number}" for number in range(3000)])
        large = EntityRow("thing", "large", 1, b'{"text":"' + b"x" * 2_000_000 + b'"}')
        contents = contents._replace(columns=columns_of([*contents.entities, large]), total=3001)
        store.publish(0, contents, created=_CREATED)
        loaded = store.newest(0)
        assert loaded is not None
        assert sorted(loaded.contents.entities) == sorted(contents.entities)

    def test_what_has_changed_goes_on_from_a_base(self, store: SnapshotStore, tmp_path: Path) -> None:
        """Only changed rows are given; what comes back is everything, with the newest row of each, however many
        snapshots lie between."""
        whole = {key: EntityRow("thing", key, 1, b'"%s"' % key.encode()) for key in _TEXTS}
        base = store.publish(
            0, Contents(columns_of(whole.values()), _contents(1, []).memory, len(whole)), created=_CREATED
        )
        for offset in range(2, 2 + self.increments):
            changed = [EntityRow("thing", key, offset, b"%d" % offset) for key in (f"new {offset}", f"at {offset % 5}")]
            whole |= {row.key: row for row in changed}
            contents = Contents(columns_of(changed), _contents(offset, []).memory, len(whole), base)
            base = store.publish(0, contents, created=_CREATED)
            assert (base.entities, base.changed) == (len(whole), 2)
            loaded = self.reopen(store, tmp_path, APP).newest(0)
            assert loaded is not None
            assert sorted(loaded.contents.entities) == sorted(whole.values())
            assert loaded.memory.offset == offset

    def test_without_its_base_nothing_is_published(self, store: SnapshotStore) -> None:
        """A base that is not there, such as one that was removed, is told: all must be written then."""
        other = self._foreign_base(store)
        before = store.manifests(0)
        with pytest.raises(Corrupt):
            store.publish(0, _contents(9, ["a"])._replace(base=other), created=_CREATED)
        assert store.manifests(0) == before

    def _foreign_base(self, store: SnapshotStore) -> Manifest:
        manifest = store.publish(0, _contents(7, ["a"]), created=_CREATED)
        gone = [part.model_copy(update={"name": part.name.replace("/", "0/")}) for part in manifest.parts]
        return manifest.model_copy(update={"parts": gone, "offset": 6})

    def test_publishing_again_keeps_the_newest(self, store: SnapshotStore, tmp_path: Path) -> None:
        """However many are published, the newest can be loaded and is first in the list."""
        for offset in range(1, 11):
            store.publish(0, _contents(offset, [f"at {offset}"]), created=_CREATED)
        again = self.reopen(store, tmp_path, APP)
        loaded = again.newest(0)
        assert loaded is not None
        assert loaded.contents == _contents(10, ["at 10"])
        assert again.manifests(0)[0] == loaded.manifest

    def test_partitions_with_snapshots_are_listed(self, store: SnapshotStore, tmp_path: Path) -> None:
        """In their order, as another process sees them; none in a new store."""
        assert store.partitions() == []
        for partition in (12, 3):
            store.publish(partition, _contents(1, ["a"]), created=_CREATED)
        assert self.reopen(store, tmp_path, APP).partitions() == [3, 12]

    def test_any_snapshot_is_read_by_its_manifest(self, store: SnapshotStore, tmp_path: Path) -> None:
        """Not the newest only; one that is not there is told."""
        older, newer = (store.publish(0, _contents(n, [f"at {n}"]), created=_CREATED) for n in (5, 6))
        again = self.reopen(store, tmp_path, APP)
        assert again.read(older).contents == _contents(5, ["at 5"])
        assert again.read(newer).contents == _contents(6, ["at 6"])
        with pytest.raises(Corrupt):
            again.read(self._foreign_base(store))

    def test_savepoints_stay_and_stand_alone(self, store: SnapshotStore, tmp_path: Path) -> None:
        """However many snapshots follow, a savepoint is found by its name and read back, with its digest; also when
        only what had changed was given."""
        whole = [EntityRow("thing", key, 1, b'"first"') for key in ("a", "b")]
        memory = _contents(1, []).memory
        base = store.publish(0, Contents(columns_of(whole), memory, 2), created=_CREATED)
        changed = [EntityRow("thing", "b", 1, b'"second"')]
        memory = _contents(2, []).memory
        saved = store.publish(0, Contents(columns_of(changed), memory, 2, base, "before the move"), created=_CREATED)
        for offset in range(3, 12):
            store.publish(0, _contents(offset, ["c"]), created=_CREATED)

        again = self.reopen(store, tmp_path, APP)
        assert again.savepoint(0, "before the move") == saved
        assert again.savepoint(0, "another") is None
        assert again.savepoint(1, "before the move") is None
        loaded = again.read(saved)
        assert sorted(loaded.contents.entities) == [whole[0], changed[0]]
        assert saved.digest == digest_of(loaded.contents.entities, memory)

    def test_a_savepoint_is_removed_when_asked_for(self, store: SnapshotStore) -> None:
        """With what goes on from it left whole; other snapshots are not removed by hand."""
        saved = store.publish(0, _contents(1, ["a"])._replace(savepoint="old"), created=_CREATED)
        rows = [EntityRow("thing", "b", 1, b"1")]
        contents = Contents(columns_of(rows), _contents(2, []).memory, 2, saved)
        newer = store.publish(0, contents, created=_CREATED)
        store.remove(saved)
        assert store.manifests(0) == [newer]
        assert len(store.read(newer).contents.entities) == 2
        with pytest.raises(Misuse, match="is no savepoint"):
            store.remove(newer)
        assert store.manifests(0) == [newer]


def _contents(offset: int, keys: list[str]) -> Contents:
    """Contents with every table filled, and with the keys' texts wherever a text goes."""
    text = "".join(keys[:20])
    memory = Memory(
        offset=offset,
        epoch=1,
        app_version=2,
        time=_CREATED - 1,
        sessions=[
            SessionRow(f"session {text}", 3, 1, "reply", f'"{text}"'),
            SessionRow("other", 1, 0, "reply", "null"),
        ],
        keys=[KeyRow(f"key {text}", "00ff", "rejected", '{"code":"no","text":""}'), KeyRow("a", "1", "reply", "1")],
        origins=[OriginRow(2, 10, 0, 1)],
        quarantine=[QuarantineRow(0, 2, "command", text, 1, text, 2, 3, f"ValueError: {text}", text)],
        quarantined=1001,
    )
    states = [(key, f'{{"key":"{number}","text":"{key!r}"}}'.encode()) for number, key in enumerate(keys)]
    rows = [EntityRow("thing", key, 1 + len(key) % 2, state) for key, state in states]
    return Contents(columns_of(rows), memory, len(rows))
