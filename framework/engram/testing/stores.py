"""The contract of a snapshot store as tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from engram.image.contents import (
    EntityRow,
    KeyRow,
    Memory,
    OriginRow,
    QuarantineRow,
    SessionRow,
    digest_of,
)
from engram.snapshots.base import Contents, SnapshotStore

APP = "conformance"
_CREATED = 1_700_000_000_000
_TEXTS = ["plain", "", "two words", 'quote"d', "new\nline", "nul\0", "ḗ\u2028", "😀", "a/b\\c", "null"]


class SnapshotConformance:
    """Inherit this in the tests of a snapshot store, and have the contract of `engram.snapshots.base` tested:

    class TestFileSnapshots(SnapshotConformance):
        def make(self, tmp_path, app): ...
        def reopen(self, store, tmp_path, app): ...
    """

    def make(self, tmp_path: Path, app: str) -> SnapshotStore:
        """A new store for this test."""
        raise NotImplementedError

    def reopen(self, store: SnapshotStore, tmp_path: Path, app: str) -> SnapshotStore:
        """The store of this test once more, as another process would open it."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, tmp_path: Path) -> SnapshotStore:
        return self.make(tmp_path, APP)

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
        assert manifest.model_dump(exclude={"format", "parts"}) == {
            "app": APP,
            "app_version": 2,
            "partition": 5,
            "offset": 42,
            "epoch": 1,
            "digest": digest_of(*contents),
            "entities": 2,
            "created": _CREATED,
        }
        assert digest_of(*loaded.contents) == manifest.digest

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
        contents.entities.append(EntityRow("thing", "large", 1, b'{"text":"' + b"x" * 2_000_000 + b'"}'))
        store.publish(0, contents, created=_CREATED)
        loaded = store.newest(0)
        assert loaded is not None
        assert sorted(loaded.contents.entities) == sorted(contents.entities)

    def test_publishing_again_keeps_the_newest(self, store: SnapshotStore, tmp_path: Path) -> None:
        """However many are published, the newest can be loaded and is first in the list."""
        for offset in range(1, 11):
            store.publish(0, _contents(offset, [f"at {offset}"]), created=_CREATED)
        again = self.reopen(store, tmp_path, APP)
        loaded = again.newest(0)
        assert loaded is not None
        assert loaded.contents == _contents(10, ["at 10"])
        assert again.manifests(0)[0] == loaded.manifest


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
        quarantine=[QuarantineRow(0, 2, "command", text, f"ValueError: {text}")],
        quarantined=1001,
    )
    states = [(key, f'{{"key":"{number}","text":"{key!r}"}}'.encode()) for number, key in enumerate(keys)]
    return Contents([EntityRow("thing", key, 1 + len(key) % 2, state) for key, state in states], memory)
