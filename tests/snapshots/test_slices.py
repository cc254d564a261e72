"""Snapshots in slices: however small these are, what comes back is what was published, with its digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from engram.errors import Corrupt, Unavailable
from engram.image.contents import EntityColumns, EntityRow, columns_of, digest_of, digest_with
from engram.snapshots.base import Contents
from engram.snapshots.files import FileStorage
from engram.snapshots.hashes import Hashes
from engram.snapshots.parquet import ParquetJson
from engram.snapshots.parted import PartedSnapshots
from engram.snapshots.serializer import Serializers
from engram.snapshots.slices import in_slices, size_of
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.snapshots.contents import social_contents

MEMORY = social_contents(1).memory
ROWS = st.builds(
    EntityRow,
    st.sampled_from(["user", "tweet"]),
    st.sampled_from("abcdefg\u00e9"),
    st.sampled_from([1, 2, "2 coin=3"]),
    st.binary(max_size=30).map(lambda data: data.hex().encode()),
)
CHANGES = st.lists(st.dictionaries(st.tuples(st.integers(0, 1), st.integers(0, 7)), ROWS, max_size=8), max_size=6)


def _store(folder: Path, slice_bytes: int, *known: ParquetJson, keep: int = 3) -> PartedSnapshots:
    serializers = Serializers(*(known or (ParquetJson(),)))
    storage = FileStorage(folder / "things")
    return PartedSnapshots(storage, "things", keep=keep, slice_bytes=slice_bytes, serializers=serializers)


def _contents(offset: int, rows: list[EntityRow], total: int, **more: object) -> Contents:
    memory = MEMORY.model_copy(update={"offset": offset})
    return Contents(columns_of(rows), memory, total)._replace(**more)


@settings(deadline=None, max_examples=40)
@given(first=st.lists(ROWS, max_size=16), changes=CHANGES, slice_bytes=st.integers(1, 200), data=st.data())
def test_every_snapshot_has_the_digest_of_the_image(tmp_path_factory, first, changes, slice_bytes, data):
    """Whole or of what has changed, a savepoint or not, written by one process or by several: the digest is that of all
    entities, and what is read has it."""
    folder = tmp_path_factory.mktemp("slices")
    store = _store(folder, slice_bytes)
    state = {(row.entity, row.key): row for row in first}
    base = store.publish(0, _contents(1, list(state.values()), len(state)), created=1)
    for offset, changed in enumerate(changes, 2):
        rows = {(row.entity, row.key): row for row in changed.values()}
        state |= rows
        if data.draw(st.booleans(), label="another process"):
            store = _store(folder, slice_bytes)
        savepoint = data.draw(st.sampled_from(["", "", "kept"]), label="savepoint")
        contents = _contents(offset, list(rows.values()), len(state), base=base, savepoint=savepoint)
        base = store.publish(0, contents, created=1)

        assert base.digest == digest_of(state.values(), contents.memory)
        assert (base.entities, base.changed) == (len(state), len(rows))
        assert savepoint == "" or len(base.steps) == 1
    loaded = _store(folder, slice_bytes).newest(0)
    assert loaded is not None
    assert sorted(loaded.contents.entities, key=str) == sorted(state.values(), key=str)
    assert sum(len(columns.keys) for columns in loaded.columns) == len(state), "each once"


@given(rows=st.lists(ROWS, max_size=40), limit=st.integers(1, 200))
def test_slices_are_bounded_and_lose_nothing(rows, limit):
    """All but the last reach the limit, and exceed it by no more than a piece; together they are what was given."""
    rows = list({(row.entity, row.key): row for row in rows}.values())
    slices = list(in_slices(columns_of(rows), limit))

    found = [
        (c.entity, key, c.version, state) for some in slices for c in some for key, state in zip(*c[2:4], strict=True)
    ]
    assert sorted(found, key=str) == sorted(map(tuple, rows), key=str)
    assert all(sum(map(size_of, some)) >= limit for some in slices[:-1])


def test_a_large_snapshot_has_many_parts_and_its_merge_too(tmp_path: Path):
    """A base of many slices, a change of several, and the base that is made of both."""
    store = _store(tmp_path, 20_000, keep=9)
    rows = [EntityRow("thing", f"key {number}", 1, b'"%s"' % (b"x" * 100)) for number in range(6000)]
    whole = store.publish(0, _contents(1, rows, 6000), created=1)
    changed = [row._replace(state=b'"%s"' % (b"y" * 100)) for row in rows[::2]]
    change = store.publish(0, _contents(2, changed, 6000, base=whole), created=1)
    merged = store.publish(0, _contents(3, changed, 6000, base=change), created=1)

    assert len(whole.entity_parts) > len(change.steps[1]) > 9
    assert len(merged.steps) == 1
    assert len(merged.entity_parts) > 9
    assert sum(part.rows for part in merged.entity_parts) == 6000
    for manifest, state in ((whole, rows), (change, [*rows[1::2], *changed]), (merged, [*rows[1::2], *changed])):
        assert sorted(store.read(manifest).contents.entities) == sorted(state)


class KeepsOld(ParquetJson):
    """Its merges leave the state of the base."""

    def merge(self, changes, base, limit) -> Iterator[tuple[bytes, int]]:
        for change in changes:
            assert list(change)
        yield from super().merge([], base, limit)


class LooksAtNothing(ParquetJson):
    """The same, without a look at what has changed."""

    def merge(self, changes, base, limit) -> Iterator[tuple[bytes, int]]:
        yield from super().merge([], base, limit)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [(KeepsOld(), "what was written is not what was given"), (LooksAtNothing(), "0 of 3 changed entities")],
    ids=["keeps old", "looks at nothing"],
)
def test_a_merge_that_goes_wrong_is_found_before_anything_is_removed(tmp_path: Path, wrong: ParquetJson, said: str):
    """It has as many entities as it should, and another digest: nothing is published."""
    store = _store(tmp_path, 1000, wrong, keep=1)
    rows = [EntityRow("thing", key, 1, b"1") for key in "abc"]
    base = store.publish(0, _contents(1, rows, 3), created=1)
    with pytest.raises(Corrupt, match=said):
        store.publish(0, _contents(2, [row._replace(state=b"2") for row in rows], 3, base=base), created=1)

    assert store.manifests(0) == [base]
    assert [path.name for path in (tmp_path / "things/partition-0000").iterdir() if path.is_dir()] == [base.name]


def test_a_change_that_forgets_an_entity_is_not_published(tmp_path: Path):
    """The image says how many entities it has; a snapshot that would have fewer is none."""
    store = _store(tmp_path, 1000)
    with pytest.raises(Corrupt, match="it would have 1 entities, and the image has 2"):
        store.publish(0, _contents(1, [EntityRow("thing", "a", 1, b"1")], 2), created=1)

    assert store.newest(0) is None


def test_what_fails_on_the_way_leaves_nothing(tmp_path: Path):
    """Entities that come bit by bit may stop coming: parts that were written are removed, and no manifest comes."""
    store = _store(tmp_path, 10)

    def coming() -> Iterator[EntityColumns]:
        yield from columns_of([EntityRow("thing", key, 1, b"12345678901") for key in "abc"])
        raise Unavailable("the shard has stopped")

    with pytest.raises(Unavailable, match="the shard has stopped"):
        store.publish(0, _contents(1, [], 3, columns=coming(), expected=3), created=1)

    assert list((tmp_path / "things/partition-0000").iterdir()) == []


def test_whoever_cannot_use_a_snapshot_does_not_damage_it(tmp_path: Path):
    """An app that does not know a type is told so, and the snapshot stays for one that does."""
    store = _store(tmp_path, 1000)
    store.publish(0, _contents(1, [EntityRow("thing", "a", 1, b"1")], 1), created=1)

    def refuse(_loaded: object) -> None:
        raise Corrupt("there is no thing")

    with pytest.raises(Corrupt, match="there is no thing"):
        store.restore(0, refuse)
    assert [manifest.offset for manifest in store.manifests(0)] == [1]


@pytest.mark.parametrize("name", ["offset", "epoch", "app_version"])
def test_what_the_digest_leaves_out_is_compared_with_the_manifest(tmp_path: Path, name: str):
    """Found by `make fuzz`: a forged owner in a part whose checksum and seal were forged too."""
    store = _store(tmp_path, 1000)
    manifest = store.publish(0, _contents(1, [EntityRow("thing", "a", 1, b"1")], 1), created=1)
    folder = tmp_path / "things" / "partition-0000"
    part = manifest.parts[-1]
    memory = json.loads((folder / part.name).read_text())
    data = json.dumps({**memory, name: memory[name] + 1}).encode()
    (folder / part.name).write_bytes(data)
    forged = part.model_copy(update={"size": len(data), "sha256": hashlib.sha256(data).hexdigest()})
    sealed = manifest.model_copy(update={"parts": [*manifest.parts[:-1], forged]}).sealed()
    (folder / f"{manifest.name}.json").write_bytes(sealed.encode())

    with pytest.raises(Corrupt, match=f"its contents have {name} {memory[name] + 1}, the manifest says {memory[name]}"):
        store.read(sealed)
    assert store.newest(0) is None


@given(st.lists(st.lists(ROWS, max_size=6), max_size=90))
def test_hashes_follow_changes(changes):
    """Whatever changes and comes, in however many runs: their sum is that of all entities as they are."""
    hashes, state = Hashes(), {}
    for rows in changes:
        newest = {(row.entity, row.key): row for row in rows}
        change = hashes.change()
        before = hashes.total
        for columns in columns_of(newest.values()):
            change.put(columns)
        assert hashes.total == before, "nothing has changed yet"
        change.take_place()
        state |= newest

        assert digest_with(hashes.total, MEMORY) == digest_of(state.values(), MEMORY)
        assert hashes.count == len(state)
