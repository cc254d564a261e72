"""`at`: of which moment the state is that a query reads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from engram.codec.codec import Codec
from engram.errors import Corrupt, Misuse
from engram.log.base import Log
from engram.shard.past import Moment, image_at
from engram.snapshots.manifest import Manifest
from engram.snapshots.parquet import table_of
from engram.spark.frames.options import Where

END = "end"
SNAPSHOT = "snapshot"
_POSITION = re.compile(r"(\d{1,5}):(\d{1,15})(?:\.-?\d{1,9})?")
_ADVANCE = 10_000


@dataclass
class StateSpan(InputPartition):
    """The state of a partition: of a snapshot, by its manifest, or at a moment of the log."""

    partition: int
    manifest: Manifest | None
    moment: Moment | None


class Moments:
    """The state that `at` names, of the partitions of an app: see docs/reference/dataframes.md.

    Without it, the state is that of the log's end, if there is a log and the app's classes are known; otherwise that of
    the newest snapshots.
    """

    def __init__(self, where: Where, at: str) -> None:
        self._where = where
        self._at = at or (END if where.log_url and where.app is not None else SNAPSHOT)

    def spans(self, partitions: Sequence[int] | None = None) -> list[StateSpan]:
        """What is to be read of each partition, or of those that are chosen. Raises `Misuse` for what is not there."""
        if self._at == SNAPSHOT:
            return _chosen(self._newest(), partitions)
        moment = _time(self._at)
        position = _POSITION.fullmatch(self._at)
        if self._at != END and moment is None and position is None:
            return _chosen(self._savepoint(), partitions)
        self._where.codec(f"The state at {self._at}")
        with closing(self._where.open_log(f"The state at {self._at}")) as log:
            if position is not None:
                found = _at_position(log, int(position[1]), int(position[2]))
            else:
                found = [Moment(log.end(partition), moment) for partition in range(log.partitions)]
        return _chosen([StateSpan(partition, None, moment) for partition, moment in enumerate(found)], partitions)

    def _newest(self) -> Iterator[StateSpan]:
        store = self._where.open_store()
        for partition in store.partitions():
            manifest = next(iter(store.manifests(partition)), None)
            if manifest is not None:
                yield StateSpan(partition, manifest, None)

    def _savepoint(self) -> list[StateSpan]:
        store = self._where.open_store()
        found = [(p, store.savepoint(p, self._at)) for p in store.partitions()]
        missing = [str(partition) for partition, manifest in found if manifest is None]
        if missing:
            raise Misuse(
                f"{self._at!r} is no moment: write {END}, {SNAPSHOT}, a time such as 2026-01-31T12:00, a position such "
                f"as 3:1042, or the name of a savepoint. There is no savepoint of that name of partitions "
                f"{', '.join(missing)}."
            )
        return [StateSpan(partition, manifest, None) for partition, manifest in found]


def _chosen(spans: Any, partitions: Sequence[int] | None) -> list[StateSpan]:
    return [span for span in spans if partitions is None or span.partition in partitions]


def _time(text: str) -> int | None:
    """Milliseconds, if it is a time; without a zone it is in UTC."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return int(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() * 1000)


def _at_position(log: Log, partition: int, offset: int) -> list[Moment]:
    """That partition with the record included, and the others as of the record's time."""
    if partition >= log.partitions or offset >= log.end(partition):
        ends = f"ends at record {log.end(partition)}" if partition < log.partitions else "is not there"
        raise Misuse(f"There is no record {partition}:{offset}: partition {partition} {ends}.")
    (record,) = log.read(partition, offset, limit=1)
    return [
        Moment(offset + 1) if each == partition else Moment(log.end(each), record.time)
        for each in range(log.partitions)
    ]


class Held(NamedTuple):
    """The entities of a partition as columns of text: entity, key, version, state, rows. All records before `offset`
    are in them."""

    offset: int
    entities: pa.Table


def held(span: StateSpan, where: Where, codec: Codec | None) -> Held:
    """The state that a span names. Raises `Corrupt` for a snapshot that is not whole."""
    if span.manifest is not None:
        try:
            return Held(span.manifest.offset, where.open_store().entities(span.manifest))
        except Corrupt as problem:
            which = f"The snapshot of partition {span.partition} at record {span.manifest.offset}"
            raise Corrupt(f"{which} cannot be read: {problem}. Read the state of the log instead: at={END}.") from None
    assert codec is not None
    assert span.moment is not None
    with closing(where.open_log("The state")) as log:
        image = image_at(span.moment, span.partition, codec, log, where.store_if_any())
    freeze = image.begin_freeze()
    while freeze.advance(_ADVANCE):
        pass
    return Held(image.offset, table_of(freeze.columns))
