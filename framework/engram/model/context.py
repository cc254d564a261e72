"""The context: a handler's only door to time, ids, randomness and effects."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from engram.errors import Misuse
from engram.model.position import Position

if TYPE_CHECKING:
    from engram.model.command import Command
    from engram.model.event import Event

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_CROCKFORD = "0123456789abcdefghjkmnpqrstvwxyz"
KEY_BYTES = 1024


class Effects(NamedTuple):
    """What a handler wants to happen besides the change of its entity. Times are in milliseconds."""

    sends: list[tuple[str, Command[Any, Any]]]
    events: list[Event]
    scheduled: list[tuple[int, Command[Any, Any]]]
    cancelled: list[str]


class Context:
    """What a handler may know and do besides its entity. Valid only while `handle` runs.

    Everything here is a function of the record: a replay sees the same time, ids and random numbers.
    """

    __slots__ = (
        "_cancelled", "_check", "_effective", "_events", "_ids", "_ids_at", "_index", "_now", "_offset", "_partition",
        "_random", "_random_at", "_scheduled", "_sends", "_time",
    )  # fmt: skip

    def __init__(self, partition: int, check: Callable[[Any], None]) -> None:
        self._check = check
        self._partition = partition
        self._offset = 0
        self._index = 0
        self._time = 0
        self._now: datetime | None = None
        self._ids = 0
        self._ids_at = (-1, 0)  # the command that the count of ids is of
        self._random: Random | None = None
        self._random_at = (-1, 0)
        self._sends: list[tuple[str, Command[Any, Any]]] = []
        self._events: list[Event] = []
        self._scheduled: list[tuple[int, Command[Any, Any]]] = []
        self._cancelled: list[str] = []
        self._effective = False  # whether there is any effect

    @property
    def now(self) -> datetime:
        """The record's time, in UTC; within a partition it never goes back."""
        if self._now is None:
            self._now = _EPOCH + timedelta(milliseconds=self._time)
        return self._now

    @property
    def position(self) -> Position:
        """Where in the log the command is that is being handled."""
        return Position(self._partition, self._offset, self._index)

    @property
    def random(self) -> Random:
        """A generator seeded by the position."""
        if self._random is None or self._random_at != (self._offset, self._index):
            self._random = Random(self._digest(b"random", 16))  # noqa: S311 - reproducible is the point
            self._random_at = self._offset, self._index
        return self._random

    def new_id(self) -> str:
        """A new id: 26 characters, unique in the application, sorted by time."""
        if self._ids_at != (self._offset, self._index):
            self._ids = 0
            self._ids_at = self._offset, self._index
        self._ids += 1
        tail = int.from_bytes(self._digest(b"id%d" % self._ids, 10), "big")
        number = (self._time << 80) | tail
        return "".join(_CROCKFORD[(number >> shift) & 31] for shift in range(125, -5, -5))

    def send(self, key: str, command: Command[Any, Any]) -> None:
        """Sends a command to another entity (or this one), through the log, exactly once.

        Messages from one entity to another arrive in the order they were sent. The reply is dropped; a
        rejection by the receiver changes nothing there and is not told to the sender.
        """
        check_key(key)
        self._check(command)
        self._sends.append((key, command))
        self._effective = True

    def emit(self, event: Event) -> None:
        """Lets a fact out of the application, exactly once."""
        self._check(event)
        self._events.append(event)
        self._effective = True

    def schedule(self, at: datetime | timedelta, command: Command[Any, Any]) -> str:
        """Has the command handled by this entity at a time, or after a while; exactly once. Returns its handle.

        It is handled with the first record whose time is not before that, soon after it at the latest while the
        application runs. A time in the past is the next record's. Nobody gets the reply.
        """
        self._check(command)
        if isinstance(at, timedelta):
            due = self._time + max(0, round(at / _MILLISECOND))
        elif at.tzinfo is None:
            raise Misuse("A timer's time needs a time zone: add one, such as datetime.UTC, or give a timedelta.")
        else:
            due = -((_EPOCH - at) // _MILLISECOND)  # rounded up: not before
        self._scheduled.append((due, command))
        self._effective = True
        return f"{self._offset}.{self._index}.{len(self._scheduled) - 1}"

    def cancel(self, handle: str) -> None:
        """Cancels what `schedule` returned the handle of. One that was handled already is left alone."""
        self._cancelled.append(handle)
        self._effective = True

    def _digest(self, purpose: bytes, size: int) -> bytes:
        place = b"%d:%d.%d" % (self._partition, self._offset, self._index)
        return blake2b(place, digest_size=size, person=purpose).digest()

    # The image drives a context by the steps below and by setting `_index`; handlers never do.

    def _enter_record(self, offset: int, time: int) -> None:
        self._offset = offset
        if time != self._time:
            self._time = time
            self._now = None

    def _take_effects(self) -> Effects:
        effects = Effects(self._sends, self._events, self._scheduled, self._cancelled)
        self._sends, self._events, self._scheduled, self._cancelled = [], [], [], []
        self._effective = False
        return effects


def check_key(key: str) -> None:
    """Raises `Misuse` unless `key` can name an entity: 1 to 1,024 bytes of UTF-8."""
    if not key:
        raise Misuse("The key is empty: name the entity that the command is for.")
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise Misuse("The key is not valid Unicode text (a lone surrogate).") from None
    if size > KEY_BYTES:
        raise Misuse(f"The key has {size} bytes; at most {KEY_BYTES} are allowed.")
