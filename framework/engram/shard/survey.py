"""What a partition's log says of itself, from the headers of its records: nothing is handled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from engram.codec.record import Epoch, Kind, MessagesHeader
from engram.errors import Corrupt, Misuse
from engram.log.base import Log
from engram.log.scan import scan
from engram.model.effects import Place

# How often progress is told, in records.
_TOLD_EVERY = 256


@dataclass(slots=True)
class Survey:
    """The records of a partition before `end`. `arrived` has the last message from each partition; `versions` how many
    records each version of the app has handled; `owner` is the last word of an owner, at `owned_at`, if there is
    any."""

    partition: int
    end: int
    arrived: dict[int, Place] = field(default_factory=dict)
    versions: Counter[int] = field(default_factory=Counter)
    owner: Epoch | None = None
    owned_at: int = -1


def survey(log: Log, partition: int, *, tell: Callable[[int, int], None] = lambda _done, _of: None) -> Survey:
    """Reads a partition from its first record to where it ends now.

    Raises `Misuse` when the first records are not there any more, and `Corrupt` for one that has no header.
    """
    found = Survey(partition, log.end(partition))
    epoch, version, unowned = -1, 0, 0
    for expected, record in enumerate(scan(log, partition, 0, found.end)):
        if record.offset != expected:
            raise Misuse(
                f"Partition {partition} of the log has record {record.offset} after record {expected - 1}: what is "
                "between is gone, so it cannot be handled from the beginning. Start from a snapshot."
            )
        try:
            if record.kind is Kind.EPOCH:
                word = Epoch.model_validate_json(record.payload)
                if word.counts_after(epoch):
                    epoch, version = record.offset, word.app_version
                    found.owner, found.owned_at = word, record.offset
            elif record.kind is Kind.MESSAGES:
                header = MessagesHeader.read(record.payload.partition(b"\n")[0])
                last = found.arrived.get(header.origin_partition, (-1, 0, 0))
                found.arrived[header.origin_partition] = max(last, header.origin(-1))
        except (ValueError, IndexError) as problem:
            raise Corrupt(f"Record {record.offset} of partition {partition} has no header: {problem}") from problem
        unowned += record.kind.is_work
        if version and unowned:
            found.versions[version] += unowned
            unowned = 0
        if expected % _TOLD_EVERY == 0:
            tell(expected, found.end)
    tell(found.end, found.end)
    return found
