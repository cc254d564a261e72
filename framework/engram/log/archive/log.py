"""A log and its archive as one: what was trimmed is read from the archive, all else from the log."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from engram.codec.record import Origin, Record
from engram.errors import Corrupt
from engram.log.archive.archive import Archive
from engram.log.base import Entry, Log, Trimmed, Watch
from engram.log.memory import bounded
from engram.model.effects import OutEvent


class ArchivedLog:
    """See `engram.log.base.Log`. Who reads only what the log still has never looks into the archive."""

    def __init__(self, log: Log, archive: Archive) -> None:
        self._log = log
        self._archive = archive
        self.app = log.app
        self.partitions = log.partitions
        self.base = log.base
        self.independent = log.independent

    def check(self) -> None:
        """Raises what who reads all records would hear of the archive, as far as its seals tell: it is of another log,
        a seal was edited, segments are missing, or there is a hole between it and the log."""
        for partition in range(self.partitions):
            self._check_hole(partition, self._log.start(partition) - 1)

    def append(self, entries: Sequence[Entry], events: Sequence[OutEvent] = ()) -> list[int]:
        return self._log.append(entries, events)

    def read(self, partition: int, offset: int, *, limit: int) -> list[Record]:
        try:
            return self._log.read(partition, offset, limit=limit)
        except Trimmed:
            found = bounded(self._archive.read(partition, offset, limit))
            if found:
                return found
            self._check_hole(partition, offset)
            raise

    def news(self, offsets: Mapping[int, int]) -> Collection[int]:
        return self._log.news(offsets)  # its last record stays, whatever is trimmed

    def start(self, partition: int) -> int:
        archived = self._archive.start(partition)
        start = self._log.start(partition)
        return start if archived is None else min(start, archived)

    def end(self, partition: int) -> int:
        return self._log.end(partition)

    def last_origin(self, partition: int, origin_partition: int) -> Origin | None:
        return self._log.last_origin(partition, origin_partition)

    def events(self, partition: int, *, after: tuple[int, int, int], limit: int) -> list[OutEvent]:
        return self._log.events(partition, after=after, limit=limit)

    def trim(self, partition: int, offset: int) -> None:
        self._log.trim(partition, offset)

    def watch(self, partitions: Sequence[int] | None = None) -> Watch:
        return self._log.watch(partitions)

    def close(self) -> None:
        self._log.close()

    def _check_hole(self, partition: int, offset: int) -> None:
        """For a record that the log no longer has."""
        end = self._archive.end(partition)
        if end is not None and end <= offset:
            raise Corrupt(
                f"The archive {self._archive.place} ends at record {end} of partition {partition}, and the log begins "
                f"at {self._log.start(partition)}: what is between is in neither. Name the archive that has it."
            )
