"""Serializers have names and versions: a faster one can come, and what older ones wrote stays readable."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from engram.errors import Corrupt
from engram.image.contents import EntityColumns, EntityRow, Memory, columns_of, rows_of
from engram.snapshots.files import FileStorage
from engram.snapshots.manifest import Manifest, PartEntry
from engram.snapshots.parquet import ParquetJson
from engram.snapshots.parted import PartedSnapshots
from engram.snapshots.serializer import Serializers

from tests.snapshots.contents import social_contents
from tests.snapshots.test_increments import History


class Lines(ParquetJson):
    """Entities as lines of JSON, all else as before."""

    form = "lines-1"

    def encode(self, entities: Sequence[EntityColumns]) -> bytes:
        return b"\n".join(json.dumps([*row[:3], row.state.decode()]).encode() for row in rows_of(entities))

    def merge(
        self, changes: Iterable[Iterable[bytes]], base: Iterable[bytes], limit: int
    ) -> Iterator[tuple[bytes, int]]:
        steps = [base, *reversed([list(change) for change in changes])]
        rows = rows_of([columns for step in steps for part in step for columns in self.decode(part, {})])
        yield self.encode(columns_of(rows)), len(rows)

    def decode(self, part: bytes, newer: Mapping[str, Collection[str]]) -> list[EntityColumns]:
        rows = [json.loads(line) for line in part.splitlines()]
        wanted = (row for row in rows if row[1] not in newer.get(row[0], ()))
        return columns_of(EntityRow(*row[:3], row[3].encode()) for row in wanted)


def _store(folder: Path, *known: ParquetJson) -> PartedSnapshots:
    return PartedSnapshots(FileStorage(folder / "things"), "things", serializers=Serializers(*known))


def test_every_part_says_who_wrote_it(tmp_path: Path):
    """By the serializer's form."""
    manifest = History(tmp_path).newest

    assert [part.form for part in manifest.parts] == ["parquet-json-1", "parquet-json-1"]


def test_a_new_serializer_goes_on_from_what_an_older_one_wrote(tmp_path: Path):
    """Snapshots of both forms are read, in one chain, and merged into the new form in time."""
    history = History(tmp_path, entities=300)
    history.change(2, ["key 1"])
    history.store = _store(tmp_path, Lines(), ParquetJson())
    forms = []
    for offset in range(3, 22):
        manifest = history.change(offset, [f"key {offset}"])
        forms.append([part.form for part in manifest.entity_parts])
        loaded = _store(tmp_path, Lines(), ParquetJson()).newest(0)
        assert loaded is not None
        assert {row.key: row for row in loaded.contents.entities} == history.state

    assert forms[0] == ["parquet-json-1", "parquet-json-1", "lines-1"]
    assert ["lines-1"] in forms


def test_an_unknown_form_is_told_with_both_names(tmp_path: Path):
    """What a newer Engram wrote is not guessed at."""
    history = History(tmp_path, entities=3)
    history.store = _store(tmp_path, Lines(), ParquetJson())
    manifest = history.change(2, ["key 1"])

    with pytest.raises(Corrupt, match="has the form lines-1, and this Engram reads parquet-json-1: run a newer one"):
        _store(tmp_path, ParquetJson()).read(manifest)


def test_manifests_from_before_forms_had_names_keep_their_seal():
    """A part without a form is in the sum as it was when there were none; with one, the form is sealed too."""
    part = PartEntry(name="000000000000001-00000000/memory.json", kind="memory", size=1, sha256="0", rows=0)
    contents = social_contents(1)
    before = contents.manifest("social", 0, created=1, parts=[part], digest="", changed=1)
    raw = json.loads(before.encode())
    del raw["parts"][0]["form"]

    assert Manifest.decode(json.dumps(raw).encode()) == before
    raw["parts"][0]["form"] = "parquet-json-1"
    with pytest.raises(Corrupt, match="does not match its seal"):
        Manifest.decode(json.dumps(raw).encode())


def test_memory_that_is_no_memory_is_told():
    """Damage that a checksum would have found is an error of ours all the same."""
    serializer = ParquetJson()
    memory = social_contents(1).memory

    assert serializer.decode_memory(serializer.encode_memory(memory)) == memory
    for data in (b"", b"{}", b"[" * 10_000, b"\xff"):
        with pytest.raises(Corrupt):
            serializer.decode_memory(data)
    assert isinstance(memory, Memory)


def _part(**columns: pa.Array) -> bytes:
    sink = pa.BufferOutputStream()
    texts = {name: pa.array(["1"]) for name in ("entity", "key", "version", "state")}
    pq.write_table(pa.table({**texts, **columns}), sink)
    return bytes(sink.getvalue().to_pybytes())


@pytest.mark.parametrize(
    "part",
    [
        _part(key=pa.array([b"\xff"])),
        _part(key=pa.array([None], pa.string())),
        _part(state=pa.array([1])),
        _part(rows=pa.array([b"[]"])),
        _part(entity2=pa.array(["x"])).replace(b"entity2", b"entit\xf92"),
    ],
    ids=["keys that are bytes", "no key", "states that are numbers", "rows that are bytes", "a name that is no text"],
)
def test_a_part_that_is_no_text_is_corrupt(part: bytes):
    """Found by `make fuzz`: whoever changes checksum and seal too gets a refusal, not another exception."""
    with pytest.raises(Corrupt, match=r"its (entities cannot be read|column .* should be text)"):
        ParquetJson().decode(part, {})
