"""Entities in Parquet: columns entity, key, version, state (JSON text), and rows of read models (JSON text or null).
Anything reads them, without the app's classes.

Rows of read models are no part of a snapshot's digest. So a part has a hash of its own for them, in its metadata: rows
without one, or with another, are left out, and whoever loads the entities makes them anew.

The work is Arrow's own, without Python's lock wherever that is possible: commands go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import compress
from typing import TYPE_CHECKING, Any

from engram.errors import Corrupt
from engram.image.contents import EntityColumns, Memory
from engram.model.version import read_version

if TYPE_CHECKING:
    import pyarrow as pa

# Parquet keeps a row group's column in memory: this bounds it for large entities.
_ROW_GROUP = 50_000
# Arrow keeps Python's lock while it takes in a list of Python's objects: this bounds it, to about a millisecond. Fewer
# at once would not help commands, and make a writer beside a busy shard wait for the lock that much more often: 5 ms.
_AT_ONCE = 20_000
_COLUMNS = ["entity", "key", "version", "state", "rows"]
_ROWS_HASH = b"engram.rows"
_ORDER = [("entity", "ascending"), ("key", "ascending")]


class ParquetJson:
    """See `engram.snapshots.serializer.Serializer`. What is no entity is one JSON document."""

    form = "parquet-json-1"

    def encode(self, entities: Sequence[EntityColumns]) -> bytes:
        """A part with these entities."""
        return _encode(table_of(entities))

    def merge(
        self, changes: Iterable[Iterable[bytes]], base: Iterable[bytes], limit: int
    ) -> Iterator[tuple[bytes, int]]:
        """Parts with the newest row of every entity, and how many are in each. At no time is more in memory than about
        `limit` bytes, a part, and the names of what has changed."""
        import pyarrow as pa

        tables: list[pa.Table] = []
        given = False
        for kept in _newest_rows(changes, base):
            tables.append(kept)
            if sum(table.nbytes for table in tables) >= limit:
                merged, tables, given = pa.concat_tables(tables), [], True
                yield _encode(merged), len(merged)
        if any(map(len, tables)) or not given:
            merged = pa.concat_tables(tables)
            yield _encode(merged), len(merged)

    def table(self, parts: Sequence[bytes]) -> pa.Table:
        """The newest row of every entity, as columns of text. Raises `Corrupt` for what is no such part."""
        import pyarrow as pa

        table = pa.concat_tables([_table(part) for part in parts])
        if len(parts) == 1:
            return table
        table = table.append_column("place", pa.array(range(len(table)), pa.int64()))
        newest = table.group_by(["entity", "key"], use_threads=False).aggregate([("place", "max")])["place_max"]
        return table.take(newest).drop_columns(["place"])

    def decode(self, part: bytes, newer: Mapping[str, Collection[str]]) -> list[EntityColumns]:
        """The entities of a part by type and version, but for those that are newer. Raises `Corrupt` for what is no
        such part."""
        import pyarrow as pa
        import pyarrow.compute as pc

        table = _table(part)
        found = []
        try:
            groups = table.group_by(["entity", "version"], use_threads=False).aggregate([]).to_pylist()
            for group in groups:
                of_group = [pc.equal(table[column], value) for column, value in group.items()]
                rows = table if len(groups) == 1 else table.filter(pc.and_(*of_group))
                keys = _values(rows["key"])
                if superseded := newer.get(group["entity"]):  # what is not wanted need not become an object of Python
                    wanted = [key not in superseded for key in keys]
                    rows = rows.select(["state", "rows"]).filter(pa.array(wanted))
                    keys = list(compress(keys, wanted))
                states = _values(rows["state"].cast(pa.large_binary()))
                none = rows["rows"].null_count == len(rows)
                read = () if none else _values(rows["rows"].cast(pa.large_binary()))
                if keys:
                    found.append(EntityColumns(group["entity"], read_version(group["version"]), keys, states, read))
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

    table = table.sort_by(_ORDER)
    if table["rows"].null_count < len(table):
        table = table.replace_schema_metadata({_ROWS_HASH: _hash_of_rows(table)})
    sink = pa.BufferOutputStream()
    # Few entities are ever compared by state, so a dictionary of states would only cost.
    with pq.ParquetWriter(sink, table.schema, compression="zstd", use_dictionary=["entity", "version"]) as writer:
        writer.write_table(table, row_group_size=_ROW_GROUP)
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
    if table["rows"].null_count < len(table) and (table.schema.metadata or {}).get(_ROWS_HASH) != _hash_of_rows(table):
        table = table.set_column(_COLUMNS.index("rows"), "rows", pa.nulls(len(table), pa.string()))
    return table.replace_schema_metadata(None)


def _values(column: pa.ChunkedArray) -> list[Any]:
    """As objects of Python, which are made under its lock."""
    return [value for start in range(0, len(column), _AT_ONCE) for value in column.slice(start, _AT_ONCE).to_pylist()]


def _hash_of_rows(table: pa.Table) -> bytes:
    """Of the rows of read models, with the entities that they are of, in their order."""
    import pyarrow.compute as pc

    hashed = blake2b(digest_size=32)
    for name in ("entity", "key", "rows"):
        for column in (pc.fill_null(pc.binary_length(table[name]), -1), pc.fill_null(table[name], "")):
            for chunk in column.chunks:
                _update(hashed, chunk)
    return hashed.hexdigest().encode()


def _update(hashed: blake2b, chunk: pa.Array) -> None:
    """By the values alone, however they are cut into chunks."""
    import pyarrow as pa

    if chunk.type == pa.string():
        offsets = memoryview(chunk.buffers()[1]).cast("i")[chunk.offset :]
        data = chunk.buffers()[2]
        if data is not None:
            hashed.update(memoryview(data)[offsets[0] : offsets[len(chunk)]])
    else:
        hashed.update(memoryview(chunk.buffers()[1])[4 * chunk.offset : 4 * (chunk.offset + len(chunk))])


def _newest_rows(changes: Iterable[Iterable[bytes]], base: Iterable[bytes]) -> Iterator[pa.Table]:
    newer: list[pa.Array] = []
    for step in changes:
        names = []
        for part in step:
            table = _table(part)
            names.append(_names(table))
            yield _without(table, names[-1], newer)
        newer += names
    for part in base:
        table = _table(part)
        yield _without(table, _names(table), newer)


def _names(table: pa.Table) -> pa.Array:
    """Type and key of each entity as one text."""
    import pyarrow.compute as pc

    names = pc.binary_join_element_wise(table["entity"], table["key"], "\0")
    return names.combine_chunks()


def _without(table: pa.Table, names: pa.Array, newer: Sequence[pa.Array]) -> pa.Table:
    """The rows that no newer part has."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not newer:
        return table
    superseded = pc.is_in(names, value_set=pa.chunked_array(newer, pa.string()))
    return table.filter(pc.invert(superseded))
