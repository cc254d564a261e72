"""The outbox: messages and events of handled commands, on their way into the log."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import chain

from engram.clock import Clock
from engram.codec.record import Kind, Message, Origin, encode_messages
from engram.image.image import Emitted, Handled, Image
from engram.log.base import Entry, Log, OutEvent
from engram.log.partitioner import partition_of
from engram.log.pieces import pieces

_NOTHING = Origin(-1, 0, 0)


def flush(outboxes: Collection[Outbox], log: Log) -> None:
    """Returns when everything in the outboxes is durable. Raises otherwise, and everything is kept."""
    if take_all(outboxes):
        append_taken(outboxes, log)


def take_all(outboxes: Iterable[Outbox]) -> bool:
    """Sets apart what is to be appended next; what is apart already goes first. False if there is nothing."""
    taken = [outbox.take() for outbox in outboxes]
    return any(taken)


def append_taken(outboxes: Collection[Outbox], log: Log) -> None:
    """Returns when everything that was taken is durable, by one append for all. Raises otherwise, and it is kept."""
    entries: list[Entry] = []
    events: list[OutEvent] = []
    for outbox in outboxes:
        more_entries, more_events = outbox.waiting()
        entries += more_entries
        events += more_events
    if entries or events:
        log.append(entries, events)
    for outbox in outboxes:
        outbox.sent()


class Outbox:
    """Collects the effects of one partition's commands and makes them durable in order.

    What an earlier owner already put into the log is left out, as far as the log knows; what slips through
    is dropped by the receiver. A snapshot may be published only of an image whose effects are durable.

    Between `take` and `sent`, what was taken may be appended on another thread.
    """

    def __init__(self, partition: int, log: Log, clock: Clock) -> None:
        self._partition = partition
        self._log = log
        self._clock = clock
        self._messages: dict[int, list[Message]] = {}
        self._events: list[OutEvent] = []
        self._taken_messages: dict[int, list[Message]] = {}
        self._taken_events: list[OutEvent] = []
        self._tick: int | None = None
        self._taken_tick: int | None = None
        self._sent: dict[int, Origin] = {}

    @property
    def untaken(self) -> bool:
        """Whether there is something that no append has taken yet."""
        return bool(self._messages or self._events) or self._tick is not None

    @property
    def pending(self) -> bool:
        """Whether there is something that is not durable yet."""
        return self.untaken or self._taken

    @property
    def _taken(self) -> bool:
        return bool(self._taken_messages or self._taken_events) or self._taken_tick is not None

    @property
    def size(self) -> int:
        """How many effects wait for an append."""
        return len(self._events) + sum(map(len, self._messages.values()))

    def take(self) -> bool:
        """Sets apart what is to be appended next, unless that is under way already. False if there is nothing."""
        if not self._taken:
            self._taken_messages, self._messages = self._messages, {}
            self._taken_events, self._events = self._events, []
            self._taken_tick, self._tick = self._tick, None
        return self._taken

    def drop(self) -> None:
        """Forgets what no append has taken yet."""
        self._messages, self._events, self._tick = {}, [], None

    def add(self, handled: Handled, image: Image) -> None:
        for message in handled.messages:
            destination = partition_of(message.key, self._log.partitions)
            self._messages.setdefault(destination, []).append(message)
        if handled.events:
            self._events.extend(self._out(emitted, image) for emitted in handled.events)

    def tick(self, time: int) -> None:
        """Has the time told to the partition itself: a timer is due."""
        self._tick = time

    def waiting(self) -> tuple[list[Entry], list[OutEvent]]:
        """What was taken, as records and events; call `sent` when it is durable."""
        # Left out here and not in `add`, which must not fail: its record is handled, and its effects would be lost.
        entries = (
            self._entries(partition, [m for m in messages if m.origin > self._already_sent(partition)])
            for partition, messages in self._taken_messages.items()
        )
        tick = [] if self._taken_tick is None else [Entry(self._partition, Kind.TICK, self._taken_tick, b"")]
        return [*chain.from_iterable(entries), *tick], self._taken_events

    def sent(self) -> None:
        self._taken_messages = {}
        self._taken_events = []
        self._taken_tick = None

    def _already_sent(self, destination: int) -> Origin:
        if destination not in self._sent:
            self._sent[destination] = self._log.last_origin(destination, self._partition) or _NOTHING
        return self._sent[destination]

    def _entries(self, partition: int, messages: list[Message]) -> Iterator[Entry]:
        time = self._clock()
        for piece in pieces(messages, lambda message: message):
            yield self._entry(partition, piece, time)

    def _entry(self, partition: int, messages: list[Message], time: int) -> Entry:
        payload = encode_messages(messages, self._partition)
        return Entry(partition, Kind.MESSAGES, time, payload, (self._partition, messages[-1].origin))

    def _out(self, emitted: Emitted, image: Image) -> OutEvent:
        event = emitted.event
        name, version = event.__engram__.name or "", event.__engram__.version
        place = emitted.offset, emitted.index, emitted.number
        return OutEvent(self._partition, *place, name, version, image.time, emitted.key, emitted.body)
