"""Entities in Parquet: columns entity, key, version, state (JSON text), and rows of read models (JSON text or null).
Anything reads them, without the app's classes.

The work is Arrow's own, without Python's lock wherever that is possible: commands go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from engram.errors import Corrupt
from engram.image.contents import EntityColumns, Memory
from engram.model.version import read_version

if TYPE_CHECKING:
    import pyarrow as pa

# Parquet keeps a row group's column in memory: this bounds it for large entities.
_ROW_GROUP = 50_000
# Arrow keeps Python's lock while it takes in a list of Python's objects: this bounds it.
_AT_ONCE = 2_000
_COLUMNS = ["entity", "key", "version", "state", "rows"]
_ORDER = [("entity", "ascending"), ("key", "ascending")]


class ParquetJson:
    """See `engram.snapshots.serializer.Serializer`. What is no entity is one JSON document."""

    form = "parquet-json-1"

    def encode(self, entities: Sequence[EntityColumns]) -> bytes:
        """A part with these entities."""
        return _encode(table_of(entities))

    def merge(self, parts: Sequence[bytes]) -> tuple[bytes, int]:
        """One part with the newest row of every entity, and how many that are. Later parts are newer."""
        merged = self.table(parts)
        return _encode(merged), len(merged)

    def table(self, parts: Sequence[bytes]) -> pa.Table:
        """The newest row of every entity, as columns of text. Raises `Corrupt` for what is no such part."""
        import pyarrow as pa

        table = pa.concat_tables([_table(part) for part in parts])
        if len(parts) == 1:
            return table
        table = table.append_column("place", pa.array(range(len(table)), pa.int64()))
        newest = table.group_by(["entity", "key"], use_threads=False).aggregate([("place", "max")])["place_max"]
        return table.take(newest).drop_columns(["place"])

    def decode(self, part: bytes) -> list[EntityColumns]:
        """The entities of a part by type and version. Raises `Corrupt` for what is no such part."""
        import pyarrow as pa
        import pyarrow.compute as pc

        table = _table(part)
        found = []
        try:
            groups = table.group_by(["entity", "version"], use_threads=False).aggregate([]).to_pylist()
            for group in groups:
                of_group = [pc.equal(table[column], value) for column, value in group.items()]
                rows = table if len(groups) == 1 else table.filter(pc.and_(*of_group))
                states: list[Any] = rows["state"].cast(pa.large_binary()).to_pylist()
                none = rows["rows"].null_count == len(rows)
                read = () if none else rows["rows"].cast(pa.large_binary()).to_pylist()
                version, keys = read_version(group["version"]), rows["key"].to_pylist()
                found.append(EntityColumns(group["entity"], version, keys, states, read))
        except (pa.ArrowException, TypeError, ValueError) as problem:
            raise Corrupt(f"its entities cannot be read: {problem}") from problem
        return found

    def encode_memory(self, memory: Memory) -> bytes:
        return memory.model_dump_json().encode()

    def decode_memory(self, part: bytes) -> Memory:
        try:
            return Memory.model_validate_json(part)
        except ValueError as problem:
            raise Corrupt(f"its memory cannot be read: {problem}") from problem


def table_of(entities: Sequence[EntityColumns]) -> pa.Table:
    """Entities as columns of text: entity, key, version, state, rows."""
    import pyarrow as pa

    schema = pa.schema([(name, pa.string()) for name in _COLUMNS])
    batches = []
    for name, version, keys, states, rows in entities:
        for start in range(0, len(keys), _AT_ONCE):
            some = keys[start : start + _AT_ONCE]
            same = [pa.repeat(text, len(some)) for text in (name, str(version))]
            state = pa.array(states[start : start + _AT_ONCE], pa.string())
            read = pa.array(rows[start : start + _AT_ONCE] or [None] * len(some), pa.string())
            batches.append(pa.record_batch([same[0], pa.array(some, pa.string()), same[1], state, read], schema))
    return pa.Table.from_batches(batches, schema)


def _encode(table: pa.Table) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    # Few entities are ever compared by state, so a dictionary of states would only cost.
    with pq.ParquetWriter(sink, table.schema, compression="zstd", use_dictionary=["entity", "version"]) as writer:
        writer.write_table(table.sort_by(_ORDER), row_group_size=_ROW_GROUP)
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


def _table(part: bytes) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(pa.BufferReader(part), use_threads=False)
        if "rows" not in table.column_names:  # written before there were read models
            table = table.append_column("rows", pa.nulls(len(table), pa.string()))
        table = table.select(_COLUMNS)
    except (pa.ArrowException, KeyError, OSError, ValueError) as problem:  # a column's name may be no text
        raise Corrupt(f"its entities cannot be read: {problem}") from problem
    for name, column in zip(_COLUMNS, table.columns, strict=True):
        if column.type != pa.string() or (column.null_count and name != "rows"):
            raise Corrupt(f"its column {name} is {column.type} with {column.null_count} nulls, and should be text")
    return table
