"""The contract of a log: a durable sequence of records per partition, and what leaves the application.

A log is made for one app and a fixed number of partitions. Any number of processes may hold it open at once.
`engram.testing.LogConformance` is this contract as tests.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol, Self

from engram.codec.record import Kind, Origin, Record
from engram.errors import Corrupt, Misuse
from engram.model.effects import OutEvent

# A record is handled as one piece, between queries; and Kafka's brokers refuse large ones.
RECORD_BYTES = 8 * 1024 * 1024
RECORD_COMMANDS = 1000
# What one read brings into memory, on top of the image.
READ_BYTES = 16 * 1024 * 1024


class NoLog(Misuse):
    """There is no log there, and none was to be made."""


class Trimmed(Corrupt):
    """A record was wanted that is before the first one that the log still has."""

    @classmethod
    def at(cls, place: object, partition: int, offset: int, start: int) -> Self:
        return cls(
            f"Record {offset} of partition {partition} is needed, but {place} begins at record {start} there: what was "
            "before it was trimmed, or was never in this log. Name its archive in the URL (?archive=FOLDER), bring the "
            "missing records back, or start from a snapshot that covers them."
        )


class Making(NamedTuple):
    """A log that is not whole yet: nobody but whoever knows the plan may open it. Its partitions begin at `base`."""

    plan: str
    base: int


class Unfinished(Misuse):
    """A log is there, but whoever makes it has not come to an end."""

    @classmethod
    def at(cls, place: object) -> Self:
        return cls(
            f"The log {place} is not whole: `engram repartition` was interrupted while it made it. Run that again, "
            "with the same words; or remove the log, and its snapshots."
        )


class Entry(NamedTuple):
    """A record to append. For messages, `origin` is the last one in the payload and where it is from."""

    partition: int
    kind: Kind
    time: int
    payload: bytes
    origin: tuple[int, Origin] | None = None


def check_partitions(entries: Sequence[Entry], partitions: int) -> None:
    """Raises `Misuse` when an entry is for a partition that is not there: nobody would ever read it."""
    for entry in entries:
        if not 0 <= entry.partition < partitions:
            raise Misuse(f"There is no partition {entry.partition}: the log has 0 to {partitions - 1}.")


class Watch(Protocol):
    """Tells that there may be something new in a log, without polling it.

    `fileno` is readable from the moment an append happened after the last `clear`, whichever process did it.
    Clear first, then read the log, then wait: nothing is missed. It may be readable without cause.
    """

    def fileno(self) -> int: ...
    def clear(self) -> None: ...
    def wake(self) -> None:
        """Makes it readable, from any thread: there is something else to do."""

    def close(self) -> None: ...


class Log(Protocol):
    """See the module. Methods raise `Unavailable` when the storage does not do its part.

    `base` is the offset that the first record of every partition had: 0, unless the log was made from another, whose
    positions are all before it. See docs/decisions/0023-repartition.md.

    `independent`: partitions are stored apart, so that an append to one need not wait for another, and one may fail
    alone. Otherwise a single append for many partitions costs as much as one for one.
    """

    app: str
    partitions: int
    base: int
    independent: bool

    def append(self, entries: Sequence[Entry], events: Sequence[OutEvent] = ()) -> list[int]:
        """Appends all entries, in order, lets all events out, and returns the entries' offsets, once all is durable.

        Entries of one partition get increasing offsets. All or none: after an error nothing was appended, unless it
        is `Unavailable` and says that this is not known; then what is there of a partition's entries is the first of
        them. An entry for a partition that the log does not have is `Misuse`. May be called from any thread.

        The events of a partition come in the order of their places, and only from its owner: one that is not after
        the last is out already, and is left as it is.
        """

    def read(self, partition: int, offset: int, *, limit: int) -> list[Record]:
        """Up to `limit` records from `offset` on, without waiting; only durable ones.

        No more than `READ_BYTES` of payload at a time, but at least one record if there is one. Raises `Trimmed` for
        an offset before `start`.
        """

    def news(self, offsets: Mapping[int, int]) -> Collection[int]:
        """Those of these partitions that may have records from their offsets on: each that has any is among them. To
        ask for many is cheaper than to read each."""

    def start(self, partition: int) -> int:
        """The offset of the first record that is still there; the end, if there is none."""

    def end(self, partition: int) -> int:
        """The offset that the next record will get."""

    def last_origin(self, partition: int, origin_partition: int) -> Origin | None:
        """The greatest origin among the messages in `partition` that came from `origin_partition`.

        May answer less than the truth, never more: it saves appending again what is there already.
        """

    def events(self, partition: int, *, after: tuple[int, int, int], limit: int) -> list[OutEvent]:
        """Events of a partition after (offset, index, number), in order."""

    def trim(self, partition: int, offset: int) -> None:
        """Removes the records before `offset`, for ever. The last one may stay, so that the end does. All others keep
        their offsets, and events stay."""

    def watch(self, partitions: Sequence[int] | None = None) -> Watch:
        """A new watch, which sees every append to these partitions from now on, or to any; it may tell of others."""

    def close(self) -> None: ...


class Draft(Log, Protocol):
    """A log in the making: see `Making`."""

    finished: bool

    def begin(self, partition: int, progress: Callable[[int, int], None]) -> None:
        """Has the partition begin at `base`, if it does not; `progress` hears how far that is, and of how much."""

    def finish(self) -> None:
        """The log is whole, and everybody may open it. Does no harm a second time."""
