"""An archive: the sealed segments of a log's old records, in a folder or an object store.

    APP/partition=3/000000000001042.json                        the seal of a segment, written last
    APP/partition=3/date=2026-11-18/000000000001042-9f2c55d1.parquet

Spark and DuckDB read the Parquet files as one table, with `partition` and `date` from the folders' names.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from engram.codec.record import Record
from engram.errors import Corrupt, Misuse, Unavailable
from engram.log.archive.segment import Segment, date_of, decode, digest_of, encode
from engram.snapshots.storage import Storage

# Of one segment: read whole, and verified, before the first of its records is given out.
_RECORDS = 20_000
_BYTES = 64 * 1024 * 1024
_SEAL = re.compile(r"(\d{15})\.json")
_DATE = re.compile(r"date=[0-9-]+")
_FILE = re.compile(r"(\d{15})-[0-9a-f]{8}\.parquet")


class Archive:
    """One log's archive. `place` is for people. Methods raise `Unavailable` when the storage does not do its part, and
    `Corrupt` when something in it was changed, or is missing.

    One process at a time may add to a partition. What is sealed is never written again.
    """

    def __init__(self, storage: Storage, app: str, partitions: int) -> None:
        self.place = storage.place
        self._storage = storage
        self._app = app
        self._partitions = partitions
        self._segments: dict[int, list[Segment]] = {}
        self._loaded: dict[int, tuple[Segment, list[Record]]] = {}  # the last one of each partition

    def segments(self, partition: int) -> list[Segment]:
        """Those of a partition, in order: one begins where the other ends. Raises `Misuse` when they are of another
        log."""
        if partition not in self._segments:
            self._segments[partition] = self._found(partition)
        return self._segments[partition]

    def start(self, partition: int) -> int | None:
        """The first record that is archived; None if none is."""
        segments = self.segments(partition)
        return segments[0].start if segments else None

    def end(self, partition: int) -> int | None:
        """The offset after the last record that is archived; None if none is."""
        segments = self.segments(partition)
        return segments[-1].end if segments else None

    def records(self, segment: Segment) -> list[Record]:
        """What is in a segment, verified."""
        kept = self._loaded.get(segment.partition)
        if kept is None or kept[0] != segment:
            self._loaded[segment.partition] = kept = (segment, self._read(segment))
        return kept[1]

    def read(self, partition: int, offset: int, limit: int) -> list[Record]:
        """Up to `limit` records from `offset` on, of one segment; none if it is not archived."""
        for segment in self.segments(partition):
            if segment.start <= offset < segment.end:
                at = offset - segment.start
                return self.records(segment)[at : at + limit]
        return []

    def add(self, partition: int, records: Iterable[Record], *, progress: Callable[[int], None]) -> int:
        """Adds records that come after those that are there, in segments by date; how many. Each segment is read back
        from storage before it is sealed."""
        added = 0
        segments = self.segments(partition)
        for latest, piece in _pieces(records, segments[-1].latest if segments else 0):
            segments.append(self._sealed(partition, piece, latest, segments[-1].seal if segments else ""))
            added += len(piece)
            progress(added)
        self._sweep(partition)
        return added

    def verify(self, partition: int, log_records: Callable[[int, int], Iterable[Record]], start: int, end: int) -> None:
        """Reads all segments from record `start` up to `end` back from storage, and compares each with what the log
        still has of it. Raises `Corrupt` when one is not the same, or some are missing."""
        self._loaded.pop(partition, None)
        self._segments.pop(partition, None)
        covered = start
        for segment in self.segments(partition):
            if segment.end <= start or segment.start >= end:
                continue
            archived = [record for record in self._read(segment) if start <= record.offset < end]
            if digest_of(archived) != digest_of(log_records(archived[0].offset, archived[-1].offset + 1)):
                raise Corrupt(f"{self._called(segment)} is not what the log has. Nothing was trimmed.")
            covered = archived[-1].offset + 1
        if covered < end:
            raise Corrupt(f"Partition {partition} is archived in {self.place} up to record {covered}, not up to {end}.")

    def _found(self, partition: int) -> list[Segment]:
        folder = _folder(partition)
        names = sorted(filter(_SEAL.fullmatch, self._storage.names(folder)))
        found: list[Segment] = []
        for name in names:
            try:
                segment = Segment.decode(self._storage.read(f"{folder}/{name}"))
            except Corrupt as problem:
                raise Corrupt(f"The archive {self.place}/{folder}/{name} cannot be used: {problem}.") from problem
            if (segment.app, segment.partitions, segment.partition) != (self._app, self._partitions, partition):
                raise Misuse(
                    f"The archive {self.place} is of {segment.app} with {segment.partitions} partitions, and the log "
                    f"of {self._app} with {self._partitions}: name another folder."
                )
            if found and (segment.start, segment.before) != (found[-1].end, found[-1].seal):
                raise Corrupt(
                    f"The archive {self.place} has records up to {found[-1].end} of partition {partition}, and then "
                    f"from {segment.start} on, which do not follow them: segments were removed or exchanged. Bring "
                    "them back."
                )
            found.append(segment)
        return found

    def _read(self, segment: Segment) -> list[Record]:
        try:
            data = self._storage.read(f"{_folder(segment.partition)}/{segment.file}")
            if hashlib.sha256(data).hexdigest() != segment.sha256:
                raise Corrupt(f"it has not the checksum {segment.sha256}: it was changed")
            records = decode(data)
            offsets = [record.offset for record in records]
            if offsets != list(range(segment.start, segment.end)) or digest_of(records) != segment.digest:
                raise Corrupt(f"its records are not those that were sealed, {segment.start} to {segment.end - 1}")
        except Corrupt as problem:
            raise Corrupt(f"{self._called(segment)} cannot be used: {problem}. Bring it back from a copy.") from problem
        return records

    def _called(self, segment: Segment) -> str:
        return f"The archive's file {self.place}/{_folder(segment.partition)}/{segment.file}"

    def _sealed(self, partition: int, records: list[Record], latest: int, before: str) -> Segment:
        data = encode(records)
        start = records[0].offset
        segment = Segment(
            app=self._app,
            partitions=self._partitions,
            partition=partition,
            start=start,
            end=records[-1].offset + 1,
            latest=latest,
            payload_bytes=sum(len(record.payload) for record in records),
            digest=digest_of(records),
            file=f"date={date_of(latest)}/{start:015}-{secrets.token_hex(4)}.parquet",
            size=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            before=before,
        ).sealed()
        folder = _folder(partition)
        self._storage.write(f"{folder}/{segment.file}", data)
        self._read(segment)
        seal = f"{folder}/{start:015}.json"
        if self._storage.size(seal) is not None:
            raise Unavailable(f"Somebody else archives partition {partition} to {self.place} too: let that end first.")
        self._storage.write(seal, segment.encode())
        return segment

    def _sweep(self, partition: int) -> None:
        """Removes files that an interrupted run has left, in place of which others were sealed: who reads the folder as
        a table would see their records twice. Others may be somebody's who is about to seal them."""
        folder = _folder(partition)
        sealed = {f"{segment.start:015}": segment.file for segment in self.segments(partition)}
        with suppress(Unavailable):
            for date in filter(_DATE.fullmatch, self._storage.names(folder)):
                for name in self._storage.names(f"{folder}/{date}"):
                    found = _FILE.fullmatch(name)
                    if found and sealed.get(found[1], f"{date}/{name}") != f"{date}/{name}":
                        self._storage.remove(f"{folder}/{date}/{name}")


def _folder(partition: int) -> str:
    return f"partition={partition}"


def _pieces(records: Iterable[Record], latest: int) -> Iterator[tuple[int, list[Record]]]:
    """Records in the pieces that become segments, each with the latest time up to its end. A piece is of one day, by a
    time that does not go back, however its writers' clocks do."""
    piece: list[Record] = []
    size = 0
    for record in records:
        now = max(latest, record.time)
        if piece and (date_of(now) != date_of(latest) or len(piece) >= _RECORDS or size >= _BYTES):
            yield latest, piece
            piece, size = [], 0
        piece.append(record)
        size += len(record.payload)
        latest = now
    if piece:
        yield latest, piece
