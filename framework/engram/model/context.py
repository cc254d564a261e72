"""The context: a handler's only door to time, ids, randomness and effects."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from engram.errors import Misuse
from engram.model.effects import Cause, Message
from engram.model.entity import EVERYWHERE, Shared
from engram.model.limits import Limits
from engram.model.position import Position
from engram.model.version import Version

if TYPE_CHECKING:
    from engram.model.command import Broadcast, Command
    from engram.model.event import Event

S = TypeVar("S", bound=Shared)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_CROCKFORD = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS = [first + second for first in _CROCKFORD for second in _CROCKFORD]
_PAIRS_OF_AN_ID = range(120, -10, -10)  # from which bit on
KEY_BYTES = 1024
_new_tuple: Any = tuple.__new__


class Outgoing(NamedTuple):
    """How a command or event type leaves a handler: its name, its version, and from an object to JSON."""

    name: str
    version: Version
    encode: Callable[[Any], bytes]
    everywhere: bool = False


class Means(NamedTuple):
    """What a context needs of its image: the types that may leave, limits, and where shared objects are."""

    commands: dict[type[Any], Outgoing]
    events: dict[type[Any], Outgoing]
    limits: Limits
    shared: Callable[[type[Any]], Any]


class Scheduled(NamedTuple):
    """A command for later, due at a time in milliseconds."""

    due: int
    number: int
    name: str
    version: Version
    body: bytes


class Context:
    """What a handler may know and do besides its entity. Valid only while `handle` runs.

    Everything here is a function of the record: a replay sees the same time, ids and random numbers.
    """

    __slots__ = (
        "_cancelled", "_cause", "_commands", "_effective", "_emitted", "_events", "_ids", "_ids_at", "_in_broadcast",
        "_index", "_messages", "_more", "_most_depth", "_most_sends", "_most_sent_bytes", "_now", "_offset",
        "_partition", "_random", "_random_at", "_scheduled", "_sent_before", "_sent_bytes", "_shared", "_time",
    )  # fmt: skip

    def __init__(self, partition: int, means: Means) -> None:
        self._commands, self._events, limits, self._shared = means
        self._most_sends, self._most_sent_bytes, self._most_depth = limits.sends, limits.sent_bytes, limits.depth
        self._partition = partition
        self._offset = 0
        self._index = 0
        self._in_broadcast = False
        self._time = 0
        self._now: datetime | None = None
        self._ids = 0
        self._ids_at = (-1, 0)  # the command that the count of ids is of
        self._random: Random | None = None
        self._random_at = (-1, 0)
        self._cause: Callable[[int], Cause] | None = None  # from a command's index to the cause of what it sends
        self._messages: list[Message] = []
        self._sent_before = 0  # how many of them are of other commands
        self._sent_bytes = 0
        self._emitted: list[tuple[str, Version, bytes]] = []
        self._scheduled: list[Scheduled] = []
        self._cancelled: list[str] = []
        self._effective = False  # whether there is any effect, or something shared was read
        self._more = False  # and whether there are others than messages

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
        return "".join([_PAIRS[(number >> shift) & 1023] for shift in _PAIRS_OF_AN_ID])

    def send(self, key: str, command: Command[Any, Any]) -> None:
        """Sends a command to another entity (or this one), through the log, exactly once.

        Messages from one entity to another arrive in the order they were sent. The reply is dropped; a
        rejection by the receiver changes nothing there and is not told to the sender.
        """
        if not (type(key) is str and key.isascii() and 0 < len(key) <= KEY_BYTES):
            check_key(key)
        try:
            name, version, encode, everywhere = self._commands[type(command)]
        except KeyError:
            raise Misuse(f"{type(command).__name__} cannot be sent: list it in App(commands=[...]).") from None
        if everywhere:
            raise Misuse(f"{type(command).__name__} is for all partitions: use ctx.broadcast.")
        self._send(key, name, version, encode(command))

    def broadcast(self, command: Broadcast[Any, Any]) -> None:
        """Sends a command for a shared object, to be handled in every partition, exactly once."""
        outgoing = self._commands.get(type(command))
        if outgoing is None or not outgoing.everywhere:
            raise Misuse(f"{type(command).__name__} is no Broadcast of the app: list it in App(commands=[...]).")
        self._send(EVERYWHERE, outgoing.name, outgoing.version, outgoing.encode(command))

    def shared(self, of: type[S]) -> S:
        """The shared object of a type, to be read only."""
        self._effective = self._more = True
        found: S = self._shared(of)
        return found

    def emit(self, event: Event) -> None:
        """Lets a fact out of the application, exactly once."""
        outgoing = self._events.get(type(event))
        if outgoing is None:
            raise Misuse(f"{type(event).__name__} is no event of the app: list it in App(events=[...]).")
        self._emitted.append((outgoing.name, outgoing.version, outgoing.encode(event)))
        self._effective = self._more = True

    def schedule(self, at: datetime | timedelta, command: Command[Any, Any]) -> str:
        """Has the command handled by this entity at a time, or after a while; exactly once. Returns its handle.

        It is handled with the first record whose time is not before that, soon after it at the latest while the
        application runs. A time in the past is the next record's. Nobody gets the reply.
        """
        outgoing = self._commands.get(type(command))
        if outgoing is None:
            raise Misuse(f"{type(command).__name__} cannot be scheduled: list it in App(commands=[...]).")
        if outgoing.everywhere is not self._in_broadcast:
            raise Misuse(f"{type(command).__name__} is not for what schedules it: a timer is for its own entity.")
        if isinstance(at, timedelta):
            due = self._time + max(0, round(at / _MILLISECOND))
        elif at.tzinfo is None:
            raise Misuse("A timer's time needs a time zone: add one, such as datetime.UTC, or give a timedelta.")
        else:
            due = -((_EPOCH - at) // _MILLISECOND)  # rounded up: not before
        number = len(self._scheduled)
        self._scheduled.append(Scheduled(due, number, outgoing.name, outgoing.version, outgoing.encode(command)))
        self._effective = self._more = True
        return f"{self._offset}.{self._index}.{number}"

    def cancel(self, handle: str) -> None:
        """Cancels what `schedule` returned to this entity as a handle. One that was handled already is left alone."""
        if not isinstance(handle, str):
            raise Misuse(f"{handle!r} is no handle of a timer: give what ctx.schedule returned.")
        self._cancelled.append(handle)
        self._effective = self._more = True

    def _send(self, key: str, name: str, version: Version, body: bytes) -> None:
        messages, cause = self._messages, self._cause
        number = len(messages) - self._sent_before
        self._sent_bytes += len(body)
        if number >= self._most_sends or self._sent_bytes > self._most_sent_bytes:
            raise Misuse(
                f"One command may send {self._most_sends:,} messages and {self._most_sent_bytes:,} bytes at most: send "
                "to fewer, let receivers pass it on, or raise the app's limits."
            )
        led_by = None if cause is None else self._checked_depth(cause(self._index))
        # As Message(...) does, without its own function in between.
        message = (name, version, key, body, (self._offset, self._index, number), led_by, None)
        messages.append(_new_tuple(Message, message))
        self._effective = True

    def _checked_depth(self, cause: Cause) -> Cause:
        if cause.depth > self._most_depth:
            raise Misuse(
                f"This would be the message number {cause.depth} that follows from another, since {cause.root}: do "
                "two entities answer each other for ever? If not, raise the app's limits."
            )
        return cause

    def _digest(self, purpose: bytes, size: int) -> bytes:
        place = b"%d:%d.%d" % (self._partition, self._offset, self._index)
        return blake2b(place, digest_size=size, person=purpose).digest()

    # The image drives a context by the steps below and by setting `_index`; handlers never do.

    def _enter_partition(self, partition: int) -> None:
        self._partition = partition
        self._ids_at = self._random_at = (-1, 0)  # another command may have the same offset and index there

    def _enter_record(self, offset: int, time: int) -> None:
        self._offset = offset
        if time != self._time:
            self._time = time
            self._now = None

    def _enter_work(self, messages: list[Message]) -> None:
        """Messages of the next commands go to the end of this list."""
        self._messages = messages
        self._sent_before = len(messages)

    def _keep_effects(self) -> None:
        """The command has ended well: what it sent stays."""
        self._sent_before = len(self._messages)
        self._sent_bytes = 0
        self._effective = False
        if self._more:
            self._emitted.clear()
            self._scheduled.clear()
            self._cancelled.clear()
            self._more = False

    def _drop_effects(self) -> None:
        """Nothing of the command is left."""
        del self._messages[self._sent_before :]
        self._keep_effects()


def check_key(key: str) -> None:
    """Raises `Misuse` unless `key` can name an entity: 1 to 1,024 bytes of UTF-8."""
    if not isinstance(key, str):
        raise Misuse(f"The key is {key!r}: the key of an entity is a str.")
    if not key:
        raise Misuse("The key is empty: name the entity that the command is for.")
    try:
        size = len(key) if key.isascii() else len(key.encode())
    except UnicodeEncodeError:
        raise Misuse("The key is not valid Unicode text (a lone surrogate).") from None
    if size > KEY_BYTES:
        raise Misuse(f"The key has {size} bytes; at most {KEY_BYTES} are allowed.")
