"""Segments: consecutive records of one partition in a Parquet file, and the seal that says what must be in it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from engram.codec.record import Kind, Record
from engram.errors import Corrupt

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = 1
_COLUMNS = ("partition", "offset", "kind", "time", "payload")


class Segment(BaseModel):
    """Records from `start` up to `end` of a partition, of a log with so many; written last, once `file` was read back.

    `digest` is of the records, in whatever form they are kept; `sha256` of the file. `latest` is the time that the
    partition has come to with the last of them, and `before` the seal of the segment before this one: so none can be
    taken out or exchanged unnoticed. `seal` is a checksum of all the rest.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = FORMAT
    app: str
    partitions: int
    partition: int
    start: int
    end: int
    latest: int
    payload_bytes: int
    digest: str
    file: str
    size: int
    sha256: str
    before: str
    seal: str = ""

    def sealed(self) -> Self:
        text = self.model_dump_json(exclude={"seal"})
        return self.model_copy(update={"seal": hashlib.sha256(text.encode()).hexdigest()})

    def encode(self) -> bytes:
        return self.model_dump_json(indent=2).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises `Corrupt` for what is no seal, or not as it was written."""
        try:
            segment = cls.model_validate_json(data)
        except ValidationError as problem:
            raise Corrupt(f"its seal cannot be read: {problem.errors()[0]['msg']}") from None
        if segment.format != FORMAT:
            raise Corrupt(f"its seal has format {segment.format}; this Engram reads format {FORMAT}")
        if segment.seal != segment.sealed().seal:
            raise Corrupt("its seal was changed")
        return segment


def date_of(time: int) -> str:
    """The day of a time in milliseconds, in UTC."""
    return f"{datetime.fromtimestamp(time / 1000, UTC):%Y-%m-%d}"


def digest_of(records: Iterable[Record]) -> str:
    """Of records in their order: the same from a log and from an archive of it."""
    state = hashlib.sha256()
    for record in records:
        state.update(f"{record.offset} {record.kind} {record.time} {len(record.payload)}\n".encode())
        state.update(record.payload)
    return state.hexdigest()


def encode(records: Sequence[Record]) -> bytes:
    """A Parquet file of consecutive records."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table(
        {
            "partition": pa.array([record.partition for record in records], pa.int32()),
            "offset": pa.array([record.offset for record in records], pa.int64()),
            "kind": pa.array([record.kind.value for record in records], pa.string()),
            "time": pa.array([record.time for record in records], pa.timestamp("ms", "UTC")),
            "payload": pa.array([record.payload for record in records], pa.binary()),
        }
    )
    sink = pa.BufferOutputStream()
    # No two payloads are the same, so a dictionary of them would only cost.
    pq.write_table(table, sink, compression="zstd", use_dictionary=["kind"])
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


def decode(data: bytes) -> list[Record]:
    """The records of such a file. Raises `Corrupt` for any other."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table: pa.Table = pq.read_table(pa.BufferReader(data), columns=list(_COLUMNS), use_threads=False)
        times = table["time"].cast(pa.int64()).to_pylist()
        columns = [table[name].to_pylist() for name in ("partition", "offset", "kind")]
        rows = zip(*columns, times, table["payload"].to_pylist(), strict=True)
        return [Record(partition, offset, Kind(kind), time, payload) for partition, offset, kind, time, payload in rows]
    except (pa.ArrowException, KeyError, OSError, ValueError) as problem:
        raise Corrupt(f"its records cannot be read: {problem}") from problem
