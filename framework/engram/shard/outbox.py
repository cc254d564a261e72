"""The outbox: messages and events of handled commands, on their way into the log."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain

from engram.clock import Clock
from engram.codec.record import Kind, Origin, encode_messages
from engram.image.image import Handled
from engram.log.base import Entry, Log
from engram.log.partitioner import partition_of
from engram.log.pieces import pieces
from engram.model.effects import Message, OutEvent, Place

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

    def add(self, handled: Handled) -> None:
        partitions, waiting = self._log.partitions, self._messages
        for message in handled.messages:
            if message.everywhere is not None:
                self._add_everywhere(message)
                continue
            destination = partition_of(message.key, partitions)
            try:
                waiting[destination].append(message)
            except KeyError:
                waiting[destination] = [message]
        self._events += handled.events

    def last_of(self, offset: int) -> dict[int, Place]:
        """The last messages of a record that was just added, by destination."""
        return {to: messages[-1].origin for to, messages in self._messages.items() if messages[-1].origin[0] == offset}

    def _add_everywhere(self, message: Message) -> None:
        for partition in range(self._log.partitions):
            if partition != self._partition:
                self._messages.setdefault(partition, []).append(message)

    def tick(self, time: int) -> None:
        """Has the time told to the partition itself: a timer is due."""
        self._tick = time

    def waiting(self) -> tuple[list[Entry], list[OutEvent]]:
        """What was taken, as records and events; call `sent` when it is durable."""
        # Left out here and not in `add`, which must not fail: its record is handled, and its effects would be lost.
        entries = (
            self._entries(partition, _after(self._already_sent(partition), messages))
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
        for piece in pieces(messages, _sizes):
            yield self._entry(partition, piece, time)

    def _entry(self, partition: int, messages: Sequence[Message], time: int) -> Entry:
        payload = encode_messages(messages, self._partition)
        return Entry(partition, Kind.MESSAGES, time, payload, (self._partition, Origin(*messages[-1].origin)))


def _after(sent: Origin, messages: list[Message]) -> list[Message]:
    """Those of messages, in the order of their origins, that are not out yet; most often all."""
    if not messages or messages[0].origin > sent:
        return messages
    return [message for message in messages if message.origin > sent]


def _sizes(messages: Sequence[Message]) -> list[int]:
    return [len(message.body) + len(message.key) for message in messages]
