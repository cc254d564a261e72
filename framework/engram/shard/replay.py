"""Recovery, second phase: the records after the snapshot, up to this owner's epoch record.

Before: `load`. Next: `serve`. The same function replays a log from zero for `engram replay`.
"""

from __future__ import annotations

from collections.abc import Callable

from engram.clock import Clock
from engram.codec.record import Epoch, Kind, Record, encode_epoch
from engram.errors import Corrupt, Fenced, Misuse
from engram.image.image import Handled, Image
from engram.log.base import Entry, Log
from engram.shard.owned import Owned

# Records per read: enough to keep SQLite busy, few enough that progress is told several times a second.
READ_RECORDS = 64
# Entities whose rows are brought up to date in one go, after a replay.
_CATCH_UP = 200

Progress = Callable[[], None]
Effects = Callable[[Handled], None]
Check = Callable[[Image, Record], None]


def take_over(owned: Owned, log: Log, *, owner: str, address: str, clock: Clock, seen: int) -> None:
    """Appends the epoch record that makes `owner` the partition's only owner, if nobody else was since record `seen`.

    A log that ends before the snapshot is not touched: the partition stops. New records would get the offsets of
    lost ones, which the snapshot has already passed.
    """
    end = log.end(owned.partition)
    if owned.image.offset > end:
        owned.stop(
            Corrupt(
                f"Partition {owned.partition} of the log ends at record {end}, but its snapshot is of record "
                f"{owned.image.offset}: the log was cut, or is an older copy."
            )
        )
        return
    epoch = Epoch(owner=owner, app_version=owned.image.app.version, address=address, seen=seen)
    owned.epoch = log.append([Entry(owned.partition, Kind.EPOCH, clock(), encode_epoch(epoch))])[0]


def replay(owned: Owned, log: Log, *, effects: Effects, progress: Progress) -> None:
    """Handles everything up to and including this owner's epoch record.

    A record that cannot be decoded stops the partition before anything of the record is handled. One that another
    owner took while this one began has moved. A log that does not answer raises `Unavailable`: recovery is to be
    started again.
    """

    def check(image: Image, record: Record) -> None:
        check_version(image, record)
        owned.handling = record

    def breathe() -> None:
        owned.handling = None
        progress()

    owned.state = "replaying"
    read_models = owned.image.read_models
    if read_models is not None:
        read_models.defer()
    try:
        replay_until(owned.image, log, owned.epoch + 1, effects=effects, progress=breathe, check=check)
        owned.check_epoch()
    except (Corrupt, Fenced, Misuse) as problem:
        owned.stop(problem)
    while read_models is not None and read_models.catch_up(_CATCH_UP, owned.image.offset - 1):
        breathe()
    owned.replayed = owned.image.handled


def check_version(image: Image, record: Record) -> None:
    """Raises `Misuse` for a record of another version. The start was checked against the newest snapshot; this one may
    be older, because that was damaged, or because somebody asks what was before it."""
    if image.app_version not in (0, image.app.version) and record.kind.is_work:
        raise Misuse(
            f"Record {record.offset} of partition {record.partition} belongs to version {image.app_version} of "
            f"{image.app.name}, and this is version {image.app.version}: run version {image.app_version} once more, "
            f"end it with `engram savepoint`, and start version {image.app.version} then."
        )


def _no_check(_image: Image, _record: Record) -> None: ...


def replay_until(
    image: Image, log: Log, end: int, *, effects: Effects, progress: Progress, check: Check = _no_check
) -> None:
    """Handles the records from the image's offset up to `end`; `check` may raise before each."""
    while image.offset < end:
        records = log.read(image.partition, image.offset, limit=min(READ_RECORDS, end - image.offset))
        if not records:
            raise Corrupt(
                f"Partition {image.partition} of the log ends at record {log.end(image.partition)}, but the state "
                f"is at {image.offset} and record {end - 1} was there: the log was cut, or is an older copy."
            )
        for record in records:
            check(image, record)
            effects(image.handle(record))
        progress()
