"""The command log on a Kafka cluster: one topic for the records, one for the events, one that says what they are."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any

from kafka import KafkaProducer, errors

from engram.codec.record import Kind, Origin, Record
from engram.errors import EngramError, Misuse, Unavailable
from engram.log.base import Entry, Making, check_partitions
from engram.log.kafka import clients
from engram.log.kafka.events import EventsOut
from engram.log.kafka.form import NOTHING, event_of, headers_of, records_of
from engram.log.kafka.problems import explain
from engram.log.kafka.reader import Reader, Tail
from engram.log.kafka.settings import KafkaSettings
from engram.log.kafka.topics import delete_before, finish_topics, open_topics
from engram.log.memory import MemoryWatch
from engram.model.effects import OutEvent

# How far back a new owner looks for messages that an earlier one already sent; older ones are sent again, and dropped.
_ORIGINS_BACK = 500
_EVENTS_AT_ONCE = 1000
_VISIBLE_S = 10.0
# So many readers of a partition's events, each at a place of its own, find it again without reading all before it.
_MARKS = 1000
# Empty records that are sent at a time where a partition does not begin at 0: what is told of the progress.
_FILLED_AT_ONCE = 20_000


class KafkaLog:
    """See `engram.log.base.Log`. Open it in the process that uses it: it must not cross a fork.

    A record is durable when all replicas that are in sync have it (`acks=all`). Appends are idempotent: Kafka's own
    retries neither double nor reorder them. An append to several partitions is not one piece: see `append`.
    """

    independent = True

    def __init__(
        self,
        settings: KafkaSettings,
        app: str,
        *,
        partitions: int | None = None,
        create: bool = False,
        making: Making | None = None,
    ) -> None:
        """Opens the log, or makes its topics when `create` and they are not there; see `open_topics` for refusals."""
        self._settings = settings
        self.app = app
        self._about = open_topics(settings, app, partitions=partitions, create=create, making=making)
        self.partitions = self._about.partitions
        self.base = self._about.base
        self.finished = not self._about.making
        self._lock = threading.Lock()
        self._starting = threading.Lock()  # held while there is no broker, for which nobody but appends should wait
        self._watches: set[MemoryWatch] = set()
        self._origins: dict[int, dict[int, Origin]] = {}
        self._seen: dict[int, int] = {}  # how far a partition goes at least, as this process was told
        # Places that were read from and to, in order, and where in the topic the events after each are.
        self._marks: dict[int, list[tuple[tuple[int, int, int], int]]] = {}
        self._reader = Reader(settings)
        self._events = EventsOut(settings, app, self._reader)
        self._producer: KafkaProducer | None = None
        self._tail: Tail | None = None
        self._closed = False

    def begin(self, partition: int, progress: Callable[[int, int], None]) -> None:
        """Kafka gives out offsets by itself: so those before the base get empty records, which are then removed."""
        end = self.end(partition)
        while end < self.base:
            producer = self._started()
            try:
                some = range(end, min(self.base, end + _FILLED_AT_ONCE))
                sent = [producer.send(self._settings.topic, b"", headers=NOTHING, partition=partition) for _ in some]
                end = max(future.get().offset for future in sent) + 1
            except errors.KafkaError as problem:
                raise self._failed(producer, problem) from problem
            progress(end, self.base)
        if end == self.base and self.start(partition) < end:
            self.trim(partition, end)

    def finish(self) -> None:
        if not self.finished:
            finish_topics(self._settings, self._about)
        self.finished = True

    def append(self, entries: Sequence[Entry], events: Sequence[OutEvent] = ()) -> list[int]:
        check_partitions(entries, self.partitions)
        for entry in entries:
            if len(entry.payload) > clients.MESSAGE_BYTES - 4096:
                raise Misuse(
                    f"A record of {len(entry.payload):,} bytes is larger than the log takes "
                    f"({clients.MESSAGE_BYTES - 4096:,}): nothing was appended."
                )
        offsets, problem = self._append(entries)
        for entry, offset in zip(entries, offsets, strict=True):
            if entry.kind is not Kind.MESSAGES:
                self._note_end(entry.partition, offset + 1)
        by_partition: dict[int, list[OutEvent]] = defaultdict(list)
        for event in events:
            by_partition[event.partition].append(event)
        for partition, of_partition in by_partition.items():
            try:
                self._events.send(partition, of_partition)
            except EngramError as refused:  # the others go on: they may have nothing to do with it
                problem = problem or refused
        if problem is not None:
            raise problem
        return offsets

    def _append(self, entries: Sequence[Entry]) -> tuple[list[int], EngramError | None]:
        """One entry of each partition at a time: when one fails, what came after it in its partition is not there."""
        offsets = [-1] * len(entries)
        waiting: dict[int, deque[int]] = defaultdict(deque)
        for number, entry in enumerate(entries):
            waiting[entry.partition].append(number)
        problem: EngramError | None = None
        sent: list[int] = []
        while waiting:
            try:
                producer = self._started()
            except EngramError as refused:
                if not sent:
                    raise
                problem = problem or refused
                break
            sent = [numbers.popleft() for numbers in waiting.values()]
            failed = self._send_all(producer, [(number, entries[number]) for number in sent], offsets)
            if failed is not None:
                told = self._failed(producer, failed)
                problem = problem or told
            done = {entries[number].partition for number in sent if offsets[number] >= 0}
            waiting = {partition: numbers for partition, numbers in waiting.items() if numbers and partition in done}
        if problem is not None and (isinstance(problem, Unavailable) or len(entries) > 1):
            which = "the record was" if len(entries) == 1 else "the records were"
            problem = Unavailable(f"{problem} Whether {which} appended is not known.")
        return offsets, problem

    def _send_all(
        self, producer: KafkaProducer, numbered: list[tuple[int, Entry]], offsets: list[int]
    ) -> errors.KafkaError | None:
        """Appends entries of different partitions, and notes the offsets of those that are there."""
        failed: errors.KafkaError | None = None
        futures = []
        try:
            for number, entry in numbered:
                futures.append((number, self._send(producer, entry)))
        except errors.KafkaError as refused:
            failed = refused
        for number, future in futures:
            try:
                offset = future.get().offset
                if offset < 0:
                    raise errors.DuplicateSequenceNumberError("Kafka has it, but does not say where")
                offsets[number] = offset
            except errors.KafkaError as refused:
                failed = failed or refused
        return failed

    def _send(self, producer: KafkaProducer, entry: Entry) -> Any:
        return producer.send(
            self._settings.topic,
            value=entry.payload,
            headers=headers_of(entry),
            partition=entry.partition,
            timestamp_ms=entry.time,
        )

    def _started(self) -> KafkaProducer:
        with self._starting:
            if self._closed:
                raise Misuse(f"The log {self._settings} was closed.")
            if self._producer is None:
                self._producer = clients.producer(self._settings)
            return self._producer

    def _failed(self, producer: KafkaProducer, problem: errors.KafkaError) -> EngramError:
        with self._starting:  # what it was doing is not known any more: the next append begins with a new one
            if self._producer is producer:
                self._producer = None
        clients.close(producer)
        return explain(problem, self._settings, "append to")

    def read(self, partition: int, offset: int, *, limit: int) -> list[Record]:
        tail = self._tail
        seen = self._seen.get(partition, 0)
        records = tail.take(partition, offset, limit, seen) if tail is not None else None
        if records is not None:
            return records
        fetched, end = self._reader.fetch(self._settings.topic, partition, offset, limit)
        # Places without a record come on top of those that were fetched.
        return list(islice(records_of(partition, offset, fetched, end, self.partitions), limit))

    def news(self, offsets: Mapping[int, int]) -> Collection[int]:
        return offsets.keys()  # what is new is in memory, mostly: to read it is as quick as to look

    def start(self, partition: int) -> int:
        return self._reader.start(self._settings.topic, partition)

    def end(self, partition: int) -> int:
        end = self._reader.end(self._settings.topic, partition)
        self._note_end(partition, end)
        return end

    def _note_end(self, partition: int, end: int) -> None:
        # Messages are left out: the shard that sends them is in no hurry to read them, and its reads would go to Kafka.
        with self._lock:
            self._seen[partition] = max(end, self._seen.get(partition, 0))

    def last_origin(self, partition: int, origin_partition: int) -> Origin | None:
        if partition not in self._origins:
            self._origins[partition] = self._reader.origins(partition, _ORIGINS_BACK)
        return self._origins[partition].get(origin_partition)

    def events(self, partition: int, *, after: tuple[int, int, int], limit: int) -> list[OutEvent]:
        """Goes on where an earlier call for the partition began or ended; if none did, from the topic's beginning.

        Other systems read the topic with a consumer of their own.
        """
        found: list[OutEvent] = []
        offset = start = self._mark_before(partition, after)
        # Readers see a transaction a moment after its commit; this process waits for its own.
        wanted, seen = self._events.last(partition), after
        deadline = time.monotonic() + _VISIBLE_S
        while len(found) < limit:
            fetched, end = self._reader.fetch(self._settings.events_topic, partition, offset, _EVENTS_AT_ONCE)
            if end == offset and (seen >= wanted or time.monotonic() > deadline):
                break
            for each in fetched:
                event = event_of(each)
                offset = each.offset + 1
                if event[1:4] > after:
                    found.append(event)
                    seen = event[1:4]
                if len(found) == limit:
                    break
            else:
                offset = end
        self._mark(partition, after, start)
        self._mark(partition, seen, offset)
        return found

    def _mark_before(self, partition: int, place: tuple[int, int, int]) -> int:
        with self._lock:
            marks = self._marks.get(partition, [])
            number = bisect_right(marks, place, key=itemgetter(0))
            return marks[number - 1][1] if number else 0

    def _mark(self, partition: int, place: tuple[int, int, int], offset: int) -> None:
        with self._lock:
            marks = self._marks.setdefault(partition, [])
            number = bisect_right(marks, place, key=itemgetter(0))
            if number and marks[number - 1][0] == place:
                marks[number - 1] = place, max(offset, marks[number - 1][1])
            else:
                marks.insert(number, (place, offset))
            if len(marks) > _MARKS:
                del marks[::2]

    def trim(self, partition: int, offset: int) -> None:
        if offset > self.start(partition):
            delete_before(self._settings, partition, offset)

    def watch(self, partitions: Sequence[int] | None = None) -> MemoryWatch:
        with self._lock:
            if self._tail is None:
                self._tail = Tail(self._settings, self.partitions, self._wake)
            tail = self._tail
        tail.follow(range(self.partitions) if partitions is None else partitions)
        return MemoryWatch(self._watches, self._lock)

    def _wake(self) -> None:
        with self._lock:
            for watch in self._watches:
                watch.wake()

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            tail = self._tail
        if tail is not None:
            tail.close()
        with self._starting:
            producer = self._producer
        if producer is not None:
            clients.close(producer, wait_s=1)
        self._events.close()
        self._reader.close()
