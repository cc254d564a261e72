"""Parts of snapshots as plain JSON: what a thousand simulations a minute can afford in place of Parquet."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from engram.errors import Corrupt
from engram.image.contents import EntityColumns
from engram.snapshots.parquet import ParquetJson
from engram.snapshots.serializer import Serializers


class PlainJson(ParquetJson):
    """See `engram.snapshots.serializer.Serializer`. What is no entity is as in Parquet's form: JSON already."""

    form = "simulated-json-1"

    def encode(self, entities: Sequence[EntityColumns]) -> bytes:
        rows = [
            (name, version, key, state.decode(), None if of_key is None else of_key.decode())
            for name, version, keys, states, read in entities
            for key, state, of_key in zip(keys, states, read if len(read) else [None] * len(keys), strict=True)
        ]
        return json.dumps(rows).encode()

    def merge(
        self, changes: Iterable[Iterable[bytes]], base: Iterable[bytes], limit: int
    ) -> Iterator[tuple[bytes, int]]:
        oldest_first = [base, *reversed([list(parts) for parts in changes])]
        newest = {(row[0], row[2]): row for parts in oldest_first for part in parts for row in _rows(part)}
        yield json.dumps(list(newest.values())).encode(), len(newest)

    def decode(self, part: bytes, newer: Mapping[str, Collection[str]]) -> list[EntityColumns]:
        return [
            EntityColumns(name, version, [key], [state.encode()], [None if read is None else read.encode()])
            for name, version, key, state, read in _rows(part)
            if key not in newer.get(name, ())
        ]


def _rows(part: bytes) -> list[list[Any]]:
    try:
        rows: list[list[Any]] = json.loads(part)
    except ValueError as problem:
        raise Corrupt(f"its entities cannot be read: {problem}") from problem
    return rows


SIMULATED = Serializers(PlainJson(), ParquetJson())
PARQUET = Serializers(ParquetJson(), PlainJson())
