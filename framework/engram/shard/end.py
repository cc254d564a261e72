"""The end of an owner's epoch, at a clean stop: what it has handled, and what is left to the next, is told apart.

Others go on appending to a partition whose owner stops: messages of shards that stop a moment later, commands of
programs that write to Kafka. After a word in the log that says where the owner has ended, all that belongs to nobody,
and the next version of the app may handle it.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from engram.clock import Clock
from engram.codec.record import Epoch, Kind, encode_epoch
from engram.errors import Unavailable
from engram.log.base import Entry, Log
from engram.shard.owned import Owned

_logger = structlog.get_logger()


def end_epochs(serving: Sequence[Owned], log: Log, *, owner: str, clock: Clock) -> None:
    """Appends the last record of each one's epoch. What is before it is still to be handled; it itself is not.

    A log that does not take it is told, and no more: the next version of the app may then be refused.
    """
    entries = [
        Entry(owned.partition, Kind.EPOCH, clock(), encode_epoch(Epoch(owner=owner, app_version=0, ends=owned.epoch)))
        for owned in serving
    ]
    try:
        offsets = log.append(entries)
    except Unavailable as problem:
        _logger.warning("epochs_not_ended", problem=str(problem))
        return
    for owned, offset in zip(serving, offsets, strict=True):
        owned.end = offset
