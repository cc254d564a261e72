"""`engram archive` as a Spark job: each partition's old records to Parquet, sealed, and read back before any go."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

from engram.errors import Corrupt, Misuse
from engram.log.archive.archive import Archive
from engram.log.base import Log
from engram.log.open import open_log
from engram.log.scan import scan
from engram.snapshots.manifest import Manifest
from engram.snapshots.open import local_folder, open_storage, open_store
from engram.snapshots.parted import PartedSnapshots
from engram.spark.batch import Run, run_batch
from engram.spark.progress import Progress, Tell
from engram.spark.spark import Spark


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivePlan:
    """Which log goes where. Travels to Spark's tasks, which open what it names."""

    app: str
    log: str
    snapshots: str
    to: str
    trim: bool


class Archived(NamedTuple):
    """A partition's archive after the job: records from `start` up to `end`, `added` of them now. `begins` is the first
    record that the log has."""

    partition: int
    start: int
    end: int
    added: int
    bytes: int
    begins: int


def check_places(plan: ArchivePlan) -> int:
    """That log, snapshots and archive belong together, as far as that can be told without reading all of them: nobody
    waits for Spark only to hear that they do not. Nothing is written. How many partitions there are.

    Raises `Misuse` and `Corrupt` as `archive_partition` does, and `Misuse` when there is no snapshot at all.
    """
    with closing(open_log(plan.log, plan.app)) as log:
        store = open_store(plan.snapshots, plan.app, create=False)
        found = {partition: store.manifests(partition) for partition in store.partitions()}
        if not any(found.values()):
            raise Misuse(
                f"There is no snapshot of {plan.app} in {plan.snapshots}, and only what is older than one is archived: "
                "take one with `engram snapshot take`."
            )
        for partition, manifests in sorted(found.items()):
            for manifest in manifests:
                _check_snapshot(log, partition, manifest)
        folder = local_folder(plan.to)
        archive = None
        if folder is None or (folder / plan.app).is_dir():
            archive = Archive(open_storage(plan.to, plan.app), plan.app, log.partitions)
        for partition in range(log.partitions):
            _next(archive, plan.to, log, partition)
        return log.partitions


def archive(
    spark: Spark, plan: ArchivePlan, partitions: int, *, on_progress: Callable[[Progress], None], run: Run = run_batch
) -> list[Archived]:
    """Archives all that is older than each partition's newest whole snapshot; with `trim`, removes from the log what is
    older than the oldest, once all of it was read back from the archive and compared with the log.

    The app may be running. Can be run again, whatever has become of it the last time.
    """
    done: list[Archived] = run(spark, range(partitions), _Archive(plan), on_progress=on_progress)
    return done


@dataclass(frozen=True, slots=True)
class _Archive:
    plan: ArchivePlan

    def __call__(self, partition: int, tell: Tell) -> Archived:
        plan = self.plan
        with closing(open_log(plan.log, plan.app)) as log:
            store = open_store(plan.snapshots, plan.app, create=False)
            archived = Archive(open_storage(plan.to, plan.app), plan.app, log.partitions)
            return archive_partition(log, store, archived, partition, trim=plan.trim, tell=tell)


def archive_partition(
    log: Log, store: PartedSnapshots, archive: Archive, partition: int, *, trim: bool, tell: Tell
) -> Archived:
    """The work of one task. Raises `Corrupt` for a hole between archive and log, `Misuse` for one of another log."""
    whole = _whole(store, log, partition)
    begins, until = log.start(partition), max((manifest.offset for manifest in whole), default=0)
    start = _next(archive, archive.place, log, partition)
    of = max(until - start, 0)

    def progress(added: int) -> None:
        tell(added, of)

    records = scan(log, partition, start, until) if of else iter(())
    added = archive.add(partition, records, progress=progress)
    tell(of, of)
    if trim and whole:
        last = min(manifest.offset for manifest in whole)
        if last > begins:
            archive.verify(partition, lambda first, end: scan(log, partition, first, end), begins, last)
            log.trim(partition, last)
    segments = archive.segments(partition)
    return Archived(
        partition,
        segments[0].start if segments else begins,
        segments[-1].end if segments else begins,
        added,
        sum(segment.size for segment in segments),
        log.start(partition),
    )


def _whole(store: PartedSnapshots, log: Log, partition: int) -> list[Manifest]:
    """The kept snapshots of a partition, savepoints among them, that are whole. One that is not holds nothing back: it
    can bring nothing back either."""
    found = []
    for manifest in store.manifests(partition):
        try:
            store.read(manifest)
        except Corrupt:
            continue
        found.append(manifest)
        _check_snapshot(log, partition, manifest)
    return found


def _check_snapshot(log: Log, partition: int, manifest: Manifest) -> None:
    """Raises `Misuse` for one of another log."""
    if manifest.app != log.app:
        problem = f"is of app {manifest.app}, and the log of {log.app}"
    elif partition >= log.partitions:
        problem = f"is there, and the log has {log.partitions} partitions"
    elif manifest.offset > log.end(partition):
        problem = f"is of record {manifest.offset}, and the log ends at {log.end(partition)}"
    else:
        return
    raise Misuse(
        f"The snapshot of partition {partition} {problem}: they do not belong together. Name the snapshots of this log."
    )


def _next(archive: Archive | None, place: str, log: Log, partition: int) -> int:
    """The first record that is to be archived."""
    begins = log.start(partition)
    end = None if archive is None else archive.end(partition)
    if archive is None or end is None:
        if begins > log.base:
            raise Corrupt(
                f"Partition {partition} of the log begins at record {begins}: what was before was trimmed, and is not "
                f"in {place}. Name the archive that has it."
            )
        return begins
    if end < begins:
        raise Corrupt(
            f"The archive {place} ends at record {end} of partition {partition}, and the log begins at {begins}: what "
            "is between is in neither. Name the archive that has it."
        )
    if end > log.end(partition):
        raise Misuse(
            f"The archive {place} goes to record {end} of partition {partition}, and the log ends at "
            f"{log.end(partition)}: it is of another log. Name another folder."
        )
    last = max(begins, end - 1)
    if last < end and archive.read(partition, last, 1) != log.read(partition, last, limit=1):
        raise Misuse(
            f"Record {last} of partition {partition} is not the same in the archive {place} and in the log: it is of "
            "another log. Name another folder."
        )
    return end
