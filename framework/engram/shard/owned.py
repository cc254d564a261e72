"""A partition in the hands of its owner."""

from __future__ import annotations

from collections import deque

from engram.codec.record import Record
from engram.errors import Fenced
from engram.image.image import Image
from engram.shard.requests import PartitionStatus


class Owned:
    """One partition of a shard, through its states: loading, replaying, serving, and then stopped or moved."""

    def __init__(self, image: Image) -> None:
        self.image = image
        self.partition = image.partition
        self.state = "loading"
        self.epoch = -1  # the offset of this owner's epoch record, once it is appended
        self.replayed = 0
        self.problem = ""
        self.snapshot = -1  # the offset of the newest snapshot, and how many commands had been handled then
        self.snapshot_handled = 0
        self.effects = 0  # the append after which the effects of the snapshot under way are durable
        self.writing = False
        self.ticked = (0, 0)  # the due time and the offset for which the time was told last
        self.unread: deque[Record] = deque()  # read from the log, and not handled yet

    def stop(self, problem: Exception) -> None:
        """Ends this partition here; the shard's others go on. With a newer owner it has only moved."""
        self.state = "moved" if isinstance(problem, Fenced) else "stopped"
        self.problem = f"{type(problem).__name__}: {problem}"

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
            quarantined=image.quarantined,
            snapshot=self.snapshot,
            problem=self.problem,
            digest=image.digest() if digest else "",
        )
