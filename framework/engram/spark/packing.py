"""Rows to records, in Spark's executors: each row is checked, then a partition's rows are packed in their order."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

from engram.codec.codec import Codec
from engram.codec.record import Envelope, encode_commands
from engram.log.base import RECORD_COMMANDS
from engram.log.pieces import pieces
from engram.model.version import read_version
from engram.shard.reference import resolve_app
from engram.spark.progress import Door
from engram.spark.rows import BAD, RowChecker
from engram.spark.worker import prepare_worker

# The partition of rows whose ids are in an earlier plan.
KNOWN = -2
CHECKED = "partition int, id string, name string, version string, key string, body binary"
PACKED = "partition int, first bigint, count int, payload binary, ids array<string>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Of rows as `read_source` gives them, with `known`. Bad ones have all that is known of them as JSON in `body`."""

    app: str
    partitions: int
    path: tuple[str, ...]
    door: Door

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark import TaskContext

        prepare_worker(self.path)
        checker = RowChecker(Codec(resolve_app(self.app)), self.partitions)
        context = TaskContext.get()
        tell = self.door.teller(context.partitionId() if context is not None else 0)
        done = 0
        for batch in batches:
            columns = {name: batch.column(name).to_pylist() for name in batch.schema.names if name != "rank"}
            rows = [_checked(checker, *row) for row in zip(*(columns[name] for name in _READ), strict=True)]
            made = dict(
                zip(("partition", "name", "version", "key", "body"), map(list, zip(*rows, strict=True)), strict=True)
            )
            kept = {name: batch.column(name) for name in ("id", "rank", "file", "block", "row")}
            done += len(rows)
            tell(done, done + 1)  # how many there are is known when all are read
            arrays = {
                "partition": pa.array(made["partition"], pa.int32()),
                **{name: pa.array(made[name], pa.string()) for name in ("name", "version", "key")},
                "body": pa.array(made["body"], pa.binary()),
                **kept,
            }
            yield pa.RecordBatch.from_pydict({name: arrays[name] for name in _ORDER})


def _checked(  # noqa: PLR0917 - the columns of `_READ`
    checker: RowChecker,
    id_: str | None,
    command: str | None,
    key: str | None,
    body: str | None,
    version: str | None,
    known: bool | None,  # noqa: FBT001
    file: str,
) -> tuple[int, str, str, str, bytes]:
    if known:
        return KNOWN, "", "", "", b""
    checked = checker.check(id_, command, key, body, version)
    if checked.partition != BAD:
        return checked[:5]
    told = {"reason": checked.problem, "id": id_, "command": command, "key": key, "body": body, "file": file}
    return BAD, "", "", "", json.dumps(told, ensure_ascii=False).encode()


_READ = ("id", "command", "key", "body", "version", "known", "file")
_ORDER = ("partition", "id", "name", "version", "key", "body", "rank", "file", "block", "row")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """Of checked rows, all those of a partition in one task and in their order. Rows that go into none are kept too:
    bad ones one by one, known ones as a number."""

    session: str

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        schema = pa.schema(
            [
                ("partition", pa.int32()),
                ("first", pa.int64()),
                ("count", pa.int32()),
                ("payload", pa.binary()),
                ("ids", pa.list_(pa.string())),
            ]
        )
        for partition, rows in groupby(_rows(batches), key=itemgetter(0)):
            first = 0
            for some in _thousands(rows):
                for record in self._records(partition, first, some):
                    first += record[2]
                    yield pa.RecordBatch.from_pylist([dict(zip(schema.names, record, strict=True))], schema)

    def _records(
        self, partition: int, first: int, rows: list[tuple[Any, ...]]
    ) -> Iterator[tuple[int, int, int, bytes, list[str]]]:
        if partition == KNOWN:
            yield partition, first, len(rows), b"", []
        elif partition == BAD:
            for number, row in enumerate(rows, first):
                yield partition, number, 1, row[5], []
        else:
            for piece in pieces(rows, _sizes):
                versions = {version: read_version(version) for version in {row[3] for row in piece}}
                envelopes = [
                    Envelope(name, versions[version], key, body, self.session, sequence)
                    for sequence, (_, _, name, version, key, body) in enumerate(piece, first)
                ]
                # Nobody waits for replies: no writer.
                yield partition, first, len(piece), encode_commands(envelopes, ""), [row[1] for row in piece]
                first += len(piece)


def _rows(batches: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    for batch in batches:
        yield from zip(*(batch.column(name).to_pylist() for name in _ORDER[:6]), strict=True)


def _thousands(rows: Iterator[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    some: list[tuple[Any, ...]] = []
    for row in rows:
        some.append(row)
        if len(some) == RECORD_COMMANDS:
            yield some
            some = []
    if some:
        yield some


def _sizes(rows: Any) -> list[int]:
    return [len(row[4]) + len(row[5]) for row in rows]
