"""Events out: each once and in order, by transactions that only the newest owner of a partition can commit."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple

from kafka import KafkaProducer, errors

from engram.log.kafka import clients
from engram.log.kafka.form import event_headers, event_of
from engram.log.kafka.problems import explain
from engram.log.kafka.reader import Reader
from engram.log.kafka.settings import KafkaSettings
from engram.model.effects import OutEvent

_NONE_YET = (-1, -1, -1)


class _Out(NamedTuple):
    producer: KafkaProducer
    last: tuple[int, int, int]  # the place of the last event that is out


class EventsOut:
    """Lets out the events of partitions that this process owns.

    A partition's first events make this process the only one that can let out more: Kafka refuses whoever did before.
    What is out already is known from the topic itself, where the last event of a partition says how far it is. After
    an error nobody knows whether the transaction was committed: the next try begins with that look again.
    """

    def __init__(self, settings: KafkaSettings, app: str, reader: Reader) -> None:
        self._settings = settings
        self._app = app
        self._reader = reader
        self._out: dict[int, _Out] = {}
        self._lock = threading.Lock()

    def send(self, partition: int, events: Sequence[OutEvent]) -> None:
        """Returns once the events that were not out yet are, in one transaction."""
        with self._lock:
            try:
                out = self._out.get(partition) or self._take_over(partition)
                new = [event for event in events if event[1:4] > out.last]
                if new:
                    self._commit(partition, out.producer, new)
                    self._out[partition] = _Out(out.producer, new[-1][1:4])
            except errors.KafkaError as problem:
                self._drop(partition)
                raise explain(problem, self._settings, "let out events to", self._settings.events_topic) from problem
            except BaseException:  # such as one of the reader's: what is out is not known any more
                self._drop(partition)
                raise

    def last(self, partition: int) -> tuple[int, int, int]:
        """The place of the last event that this process let out, as far as it did."""
        out = self._out.get(partition)
        return _NONE_YET if out is None else out.last

    def close(self) -> None:
        with self._lock:
            for partition in list(self._out):
                self._drop(partition)

    def _take_over(self, partition: int) -> _Out:
        name = f"{self._settings.events_topic}.{partition}"
        producer = clients.producer(self._settings, transactional_id=name)
        self._out[partition] = _Out(producer, _NONE_YET)
        producer.init_transactions()
        last = self._reader.last(self._settings.events_topic, partition)
        self._out[partition] = _Out(producer, _NONE_YET if last is None else event_of(last)[1:4])
        return self._out[partition]

    def _commit(self, partition: int, producer: KafkaProducer, events: Sequence[OutEvent]) -> None:
        # The client itself gives a record up after the delivery's time; that is to be heard first.
        timeout_ms = self._settings.client["delivery_timeout_ms"] + self._settings.client["request_timeout_ms"]
        producer.begin_transaction()
        sent = [
            producer.send(
                self._settings.events_topic,
                value=event.body,
                key=event.key.encode(),
                headers=event_headers(event, self._app),
                partition=partition,
                timestamp_ms=event.time,
            )
            for event in events
        ]
        # Looked at before the commit: kafka-python commits a transaction whose records it has given up, without them.
        for future in sent:
            future.get(timeout_ms / 1000)
        clients.commit(producer, timeout_ms=timeout_ms)

    def _drop(self, partition: int) -> None:
        out = self._out.pop(partition, None)
        if out is not None:
            clients.close(out.producer)
