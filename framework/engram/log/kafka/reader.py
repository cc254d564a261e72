"""Reading Kafka from any offset, and following it from its end on."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar

from kafka import KafkaConsumer, TopicPartition, errors

from engram.codec.record import Origin, Record
from engram.errors import Corrupt, EngramError, Unavailable
from engram.log.base import READ_BYTES, Trimmed
from engram.log.kafka import clients
from engram.log.kafka.form import origin_of, records_of
from engram.log.kafka.problems import explain
from engram.log.kafka.settings import KafkaSettings
from engram.log.memory import bounded
from engram.worker import give_way

T = TypeVar("T")

_ANSWER_S = 30.0
# After this long without an answer, a new consumer asks: kafka-python's can stay with a leader that leads no more, and
# never look for the new one.
_STUCK_S = 3.0
_POLL_MS = 200
_AT_END_MS = 1
_NOT_THERE = (errors.OffsetOutOfRangeError, errors.LogTruncationError, errors.NoOffsetForPartitionError)
# What a follower keeps of a partition for a reader that is still elsewhere; older records are read from Kafka again.
_KEPT_BYTES = 2 * READ_BYTES
_PAUSE_S = 0.5
_CLOSE_S = 2.0
# After this long without a record, the follower looks whether the topic is still there; twice, before it says no.
_SILENCE_S = 5.0


class Reader:
    """One consumer for whoever reads, from wherever. Its methods may be called from any thread."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._consumer = self._made()
        self._lock = threading.Lock()
        self._at: TopicPartition | None = None
        self._next = 0
        self._ahead: deque[Any] = deque()  # fetched from there, and not given out yet
        self._ends: dict[TopicPartition, int] = {}

    def fetch(self, topic: str, partition: int, offset: int, limit: int) -> tuple[list[Any], int]:
        """Up to `limit` records from `offset` on, as Kafka has them, and the offset after them; does not wait for more.

        The offset after them may be further than the last record: there may be places without one.
        """
        place = TopicPartition(topic, partition)
        with self._lock:
            try:
                if offset >= self._ends.get(place, 0) and offset >= self._ask_end(place):
                    return [], offset
                try:
                    return self._until_answered(lambda: self._fetch(place, offset, limit))
                except _NOT_THERE as problem:
                    self._at = None
                    raise self._out_of_range(place, offset) from problem
            except errors.KafkaError as problem:
                raise explain(problem, self._settings, "read") from problem

    def end(self, topic: str, partition: int) -> int:
        with self._lock:
            try:
                return self._ask_end(TopicPartition(topic, partition))
            except errors.KafkaError as problem:
                raise explain(problem, self._settings, "read") from problem

    def start(self, topic: str, partition: int) -> int:
        place = TopicPartition(topic, partition)
        timeout_ms = int(_STUCK_S * 1000)
        with self._lock:
            try:
                return int(
                    self._until_answered(
                        lambda: self._consumer.beginning_offsets([place], timeout_ms=timeout_ms)[place]
                    )
                )
            except errors.KafkaError as problem:
                raise explain(problem, self._settings, "read") from problem

    def origins(self, partition: int, records: int) -> dict[int, Origin]:
        """The greatest origins among the last records of a partition, by origin partition."""
        greatest: dict[int, Origin] = {}
        end = self.end(self._settings.topic, partition)
        offset = max(self.start(self._settings.topic, partition), end - records)
        while offset < end:
            found, offset = self.fetch(self._settings.topic, partition, offset, records)
            for origin_partition, origin in filter(None, map(origin_of, found)):
                greatest[origin_partition] = max(origin, greatest.get(origin_partition, origin))
        return greatest

    def last(self, topic: str, partition: int) -> Any | None:
        """The last record of a partition that is no marker; None if there is none."""
        first, end = self.start(topic, partition), self.end(topic, partition)
        span = 8
        while True:
            offset = start = max(first, end - span)
            last = None
            while offset < end:
                found, offset = self.fetch(topic, partition, offset, span)
                last = found[-1] if found else last
            if last is not None or start == first:
                return last
            span *= 8

    def close(self) -> None:
        with self._lock:
            self._consumer.close(timeout_ms=1000)

    def _made(self) -> KafkaConsumer:
        # It fetches ahead, also at a partition's end, and whatever is asked next stands in line behind that.
        client = {**self._settings.client, "fetch_max_wait_ms": _AT_END_MS}
        return clients.consumer(replace(self._settings, client=client))

    def _ask_end(self, place: TopicPartition) -> int:
        timeout_ms = int(_STUCK_S * 1000)
        end: int = self._until_answered(lambda: self._consumer.end_offsets([place], timeout_ms=timeout_ms)[place])
        self._ends[place] = end
        return end

    def _until_answered(self, ask: Callable[[], T]) -> T:
        deadline = time.monotonic() + _ANSWER_S
        while True:
            try:
                return ask()
            except errors.KafkaTimeoutError:
                if time.monotonic() > deadline:
                    raise
                self._renew()

    def _renew(self) -> None:
        old = self._consumer
        self._consumer = self._made()
        self._at = None
        threading.Thread(target=old.close, kwargs={"timeout_ms": 1000}, daemon=True).start()

    def _fetch(self, place: TopicPartition, offset: int, limit: int) -> tuple[list[Any], int]:
        if self._at != place:
            self._consumer.assign([place])
        if self._at != place or self._next != offset:
            self._ahead.clear()
            self._consumer.seek(place, offset)
            self._at, self._next = place, offset
        deadline = time.monotonic() + _STUCK_S
        after = self._consumer.position(place) if self._ahead else offset
        while not self._ahead and after == offset:
            if time.monotonic() > deadline:
                raise errors.KafkaTimeoutError(f"record {offset} of {place.topic}-{place.partition} did not come")
            self._ahead.extend(self._consumer.poll(timeout_ms=_POLL_MS, max_records=limit).get(place, ()))
            after = self._consumer.position(place)
        found: list[Any] = []
        size = 0
        while self._ahead and len(found) < limit:
            size += len(self._ahead[0].value or b"")
            if found and size > READ_BYTES:
                break
            found.append(self._ahead.popleft())
        self._next = self._ahead[0].offset if self._ahead else after
        return found, self._next

    def _out_of_range(self, place: TopicPartition, offset: int) -> Corrupt:
        timeout_ms = int(_ANSWER_S * 1000)
        first = self._consumer.beginning_offsets([place], timeout_ms=timeout_ms)[place]
        end = self._consumer.end_offsets([place], timeout_ms=timeout_ms)[place]
        return out_of_range(place.topic, place.partition, offset, first, end)


def out_of_range(topic: str, partition: int, offset: int, first: int, end: int) -> Corrupt:
    if offset < first:
        return Trimmed.at(f"the topic {topic}", partition, offset, first)
    return Corrupt(
        f"Record {offset} of partition {partition} is needed, but the topic {topic} holds {first} to {end - 1} there: "
        "it was cut, or made anew. Bring the missing records back, or start from a snapshot that covers them."
    )


class _Window:
    """The newest records of a partition, as far as they were not read yet."""

    def __init__(self, start: int) -> None:
        self.next = start  # the offset of the record that comes next
        self.records: deque[Record] = deque()
        self.size = 0
        self.problem: EngramError | None = None

    def add(self, records: Iterable[Record]) -> None:
        for record in records:
            self.records.append(record)
            self.size += len(record.payload)
            self.next = record.offset + 1
        while self.size > _KEPT_BYTES:
            self._drop()

    def take(self, offset: int, limit: int) -> list[Record] | None:
        while self.records and self.records[0].offset < offset:
            self._drop()
        start = self.records[0].offset if self.records else self.next
        return bounded(islice(self.records, limit)) if start == offset else None

    def _drop(self) -> None:
        self.size -= len(self.records.popleft().payload)


class Tail:
    """Follows partitions on a thread of its own, from their ends on, and calls `on_new` when there is something."""

    def __init__(self, settings: KafkaSettings, partitions: int, on_new: Callable[[], None]) -> None:
        self._settings = settings
        self._partitions = partitions
        self._on_new = on_new
        self._consumer = clients.consumer(settings)
        self._lock = threading.Lock()
        self._windows: dict[int, _Window] = {}
        self._wanted: set[int] = set()
        self._followed = threading.Condition(self._lock)
        self._closing = False
        self._cut = False  # Kafka has said that it does not have what comes next
        self._heard = time.monotonic()
        self._missing = 0  # how often the topic was not there
        self._topic_id: object = None
        self._thread = threading.Thread(target=self._run, name="engram-follow", daemon=True)
        self._thread.start()

    def follow(self, partitions: Sequence[int]) -> None:
        """Returns when these are followed too."""
        with self._followed:
            self._wanted.update(partitions)
            if not self._followed.wait_for(lambda: self._closing or self._windows.keys() >= set(partitions), _ANSWER_S):
                raise Unavailable(f"Kafka does not say where {self._settings.topic} ends.")

    def take(self, partition: int, offset: int, limit: int, seen: int) -> list[Record] | None:
        """The records from `offset` on that are here; None if it must be looked for in Kafka, where the partition goes
        to `seen` at least."""
        with self._lock:
            window = self._windows.get(partition)
            if window is None or (window.next < seen and window.problem is None):
                return None
            records = window.take(offset, limit)
            if not records and window.problem is not None:
                raise window.problem
            return records

    def close(self) -> None:
        with self._followed:
            self._closing = True
            self._followed.notify_all()
        self._thread.join(_CLOSE_S)
        self._consumer.close(timeout_ms=1000)  # which ends a call that waits for a broker
        self._thread.join()

    def _run(self) -> None:
        while not self._closing:
            try:
                self._turn()
            except EngramError as problem:
                self._give_up(self._windows, problem)
            except _NOT_THERE:
                self._cut = True
            except errors.KafkaError:
                self._go_back()
                time.sleep(_PAUSE_S)  # the client tries again by itself; so do we

    def _turn(self) -> None:
        if self._cut:
            self._find_lost()
        if self._wanted - self._windows.keys():
            self._widen()
        fetched = self._consumer.poll(timeout_ms=_POLL_MS) if self._windows else {}
        self._check_same()
        if self._consumer.assignment():
            self._keep(fetched)
        else:
            time.sleep(_POLL_MS / 1000)
        if fetched:
            self._heard, self._missing = time.monotonic(), 0
        elif time.monotonic() - self._heard > _SILENCE_S:
            self._look_for_topic()

    def _check_same(self) -> None:
        """A topic that was deleted and made anew has other records at the same offsets."""
        found = self._consumer._cluster.topic_id(self._settings.topic)  # noqa: SLF001 - kafka-python tells nobody else
        if self._topic_id is None:
            self._topic_id = found
        elif found not in (None, self._topic_id) and self._consumer.assignment():
            raise Corrupt(
                f"The topic {self._settings.topic} was deleted and made anew while it was read: its records are not "
                "those that were handled. Restore it, or choose another log."
            )

    def _look_for_topic(self) -> None:
        self._heard = time.monotonic()
        self._missing = 0 if self._settings.topic in self._consumer.topics() else self._missing + 1
        if self._missing > 1:
            raise explain(errors.UnknownTopicOrPartitionError(), self._settings, "read")

    def _go_back(self) -> None:
        """What was fetched, and then lost by an error, is fetched again."""
        for place in self._consumer.assignment():
            self._consumer.seek(place, self._windows[place.partition].next)

    def _widen(self) -> None:
        new = {p: TopicPartition(self._settings.topic, p) for p in self._wanted - self._windows.keys()}
        ends = self._consumer.end_offsets(list(new.values()), timeout_ms=int(_ANSWER_S * 1000))
        self._consumer.assign([*self._consumer.assignment(), *new.values()])
        for place in new.values():
            self._consumer.seek(place, ends[place])
        with self._followed:
            self._windows.update({p: _Window(ends[place]) for p, place in new.items()})
            self._followed.notify_all()

    def _keep(self, fetched: dict[Any, list[Any]]) -> None:
        for place in self._consumer.assignment():
            window = self._windows[place.partition]
            after = self._consumer.position(place)
            if after > window.next:
                new = records_of(place.partition, window.next, fetched.get(place, ()), after, self._partitions)
                with self._lock:
                    window.add(new)
        if fetched:
            self._on_new()
            give_way()

    def _find_lost(self) -> None:
        """Kafka does not have what comes next in some partition: which, and what it has instead."""
        places = list(self._consumer.assignment())
        timeout_ms = int(_ANSWER_S * 1000)
        firsts = self._consumer.beginning_offsets(places, timeout_ms=timeout_ms)
        ends = self._consumer.end_offsets(places, timeout_ms=timeout_ms)
        self._cut = False
        self._go_back()
        for place in places:
            window = self._windows[place.partition]
            if not firsts[place] <= window.next <= ends[place]:
                lost = out_of_range(place.topic, place.partition, window.next, firsts[place], ends[place])
                self._give_up([place.partition], lost)

    def _give_up(self, partitions: Iterable[int], problem: EngramError) -> None:
        gone = set(partitions)
        with self._lock:
            for partition in gone:
                self._windows[partition].problem = problem
        self._consumer.assign([place for place in self._consumer.assignment() if place.partition not in gone])
        self._on_new()
