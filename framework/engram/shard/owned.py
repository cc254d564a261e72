"""A partition in the hands of its owner."""

from __future__ import annotations

from collections import deque

from engram.codec.record import Record
from engram.errors import Fenced
from engram.image.freeze import Freeze
from engram.image.image import Image
from engram.shard.figures import RecoveryFigures, SnapshotFigures
from engram.shard.requests import PartitionStatus
from engram.shard.sent import Sent
from engram.shard.watched import Watched
from engram.snapshots.manifest import Manifest
from engram.snapshots.passing import Passing


class Taking:
    """A snapshot that is being taken, or the last one that was."""

    def __init__(self) -> None:
        self.handled = 0  # how many commands had been handled when it began
        self.effects = 0  # the append after which the effects of the commands in it are durable
        self.freeze: Freeze | None = None
        self.passing: Passing | None = None  # on its way to the writer, if all of it at once would be too large
        self.base: Manifest | None = None
        self.total = 0
        self.at_once = 1  # entities that are encoded between two looks at the watch: fewer, the larger they are
        self.pause = 0.0  # the longest time for which commands had to wait, in seconds
        self.writing = False
        self.ordered = False  # somebody has asked for it: it does not make others rarer
        self.savepoint = ""  # its name, if it is one
        self.began = 0  # by the clock
        self.behind = False  # the next one is due, and this one is not there yet
        self.since = 0  # when its writing began, by the clock
        self.slow = False  # whether it was told that it takes long
        self.published = 0
        self.failed = 0
        self.ended: int | None = None  # when the last one was there, or this owner began
        self.failures = 0  # in a row, up to now
        self.problem = ""  # of the last of these
        self.retry_at = 0  # when the next one may begin, after a failure

    @property
    def waits(self) -> bool:
        """Whether the copy can go on only when the writer has caught up."""
        return self.passing is not None and self.passing.full

    def paused(self, seconds: float) -> None:
        """Commands had to wait for so long."""
        self.pause = max(self.pause, seconds)


class Owned:
    """One partition of a shard, through its states: loading, replaying, serving, and then stopped, moved or
    ended."""

    def __init__(self, image: Image, partitions: int) -> None:
        self.image = image
        self.partition = image.partition
        self.sent = Sent(image.partition, partitions)
        self.watched = Watched(image.read_models)
        self.state = "loading"
        self.epoch = -1  # the offset of this owner's epoch record, once it is appended
        self.end = -1  # and of the record that ends its epoch: that is not handled, nor what comes after it
        self.replayed = 0
        self.problem = ""
        self.snapshot = -1  # the offset of the newest snapshot
        self.manifest: Manifest | None = None  # what the next snapshot goes on from
        self.figures: SnapshotFigures | None = None  # of the newest snapshot
        self.recovery: RecoveryFigures | None = None
        self.taking = Taking()
        self.ticked = (0, 0)  # the due time and the offset for which the time was told last
        self.unread: deque[Record] = deque()  # read from the log, and not handled yet
        self.unsure = False  # the log could not be read: nobody knows whether there is more
        self.handling: Record | None = None  # what is in hand now; the watchdog looks at it from its own thread

    @property
    def copying(self) -> bool:
        """Whether a copy for a snapshot is under way, and can go on."""
        return self.image.freeze is not None and not self.taking.waits

    @property
    def handing_over(self) -> bool:
        """Whether the writer has a part of a copy, and waits for more."""
        return self.image.freeze is not None and self.taking.passing is not None

    def check_epoch(self) -> None:
        """Raises `Fenced` when the record that was handled last has made another the owner, or not made this one it."""
        if self.image.epoch < self.epoch:
            raise Fenced(f"Partition {self.partition} has an owner since record {self.image.epoch}: it came first.")
        if self.image.epoch > self.epoch:
            raise Fenced(f"A newer owner has partition {self.partition} since record {self.image.epoch}.")

    def stop(self, problem: Exception) -> None:
        """Ends this partition here; the shard's others go on. With a newer owner it has only moved."""
        self.handling = None
        self.state = "moved" if isinstance(problem, Fenced) else "stopped"
        self.problem = f"{type(problem).__name__}: {problem}"

    @property
    def building(self) -> bool:
        """Whether a read model has not been through all entities yet."""
        return self.image.read_models is not None and self.image.read_models.building

    def build(self, limit: int) -> bool:
        """Goes through up to `limit` entities for read models; False when none is waiting."""
        return self.image.read_models is not None and self.image.read_models.advance(limit, self.image.offset)

    def end_cleanly(self, savepoint: str) -> None:
        """The owner has stopped. If all that was handled is in a snapshot, and the log has its last word, the partition
        has ended; if not, it says why: something is left to replay, or what comes now would count as this version's."""
        missing = bool(savepoint) and (self.manifest is None or self.manifest.savepoint != savepoint)
        if missing or self.image.changed > self.snapshot:
            self.state = "stopped"
            self.problem = f"Its last snapshot could not be taken: {self.taking.problem or 'not known why'}"
        elif self.end < 0:
            self.state = "stopped"
            self.problem = (
                "The log has not taken the word that its epoch has ended: start this version once more, and end it "
                "again, before you start another."
            )
        else:
            self.state = "ended"

    def status(self, *, digest: bool = False) -> PartitionStatus:
        image = self.image
        return PartitionStatus(
            partition=self.partition,
            state=self.state,
            offset=image.offset,
            epoch=self.epoch,
            entities=image.count(),
            handled=image.handled,
            replayed=self.replayed,
            quarantined=image.quarantine.count,
            snapshot=self.snapshot,
            newest_snapshot=self.figures,
            snapshots_published=self.taking.published,
            snapshots_failed=self.taking.failed,
            snapshot_behind=self.taking.behind,
            recovery=self.recovery,
            snapshot_failures=self.taking.failures,
            snapshot_problem=self.taking.problem,
            snapshot_since=self.taking.since if self.taking.writing else 0,
            problem=self.problem,
            digest=image.digest() if digest else "",
            read_models=[] if image.read_models is None else image.read_models.states(),
        )
