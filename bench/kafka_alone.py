"""What a record takes through Kafka itself, by a client in C: no log on it can come below that.

One record after the other, sent and read by this process.
"""

from __future__ import annotations

import threading
import time

import confluent_kafka
from engram.dev.kafka import Brokers
from engram.log.kafka.settings import parse_kafka_url
from engram.log.open import open_log

from bench.workload import app

_BYTES = 200  # about what a record of one command takes
_WARM_UP = 500
_ANSWER_S = 10.0


def through_kafka(brokers: Brokers, count: int) -> tuple[list[float], list[float]]:
    """Milliseconds until it is acknowledged, and until a reader has it."""
    url = brokers.url("alone")
    open_log(url, app.name, partitions=1, create=True).close()
    topic, servers = parse_kafka_url(url).topic, ",".join(parse_kafka_url(url).servers)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": servers, "acks": "all", "enable.idempotence": True, "linger.ms": 0}
    )
    reader = _Reader(servers, topic)
    acknowledged, read = [], []
    try:
        for _ in range(_WARM_UP + count):
            reader.has_it.clear()
            told: list[object] = []
            started = time.perf_counter()
            producer.produce(
                topic, bytes(_BYTES), partition=0, on_delivery=lambda error, _, told=told: told.append(error)
            )
            while not told and time.perf_counter() - started < _ANSWER_S:
                producer.poll(_ANSWER_S)
            acknowledged.append(1000 * (time.perf_counter() - started))
            if told != [None] or not reader.has_it.wait(_ANSWER_S):
                raise SystemExit(f"Kafka did not give a record back within {_ANSWER_S:.0f} s: {told}")
            read.append(1000 * (reader.had_it - started))
    finally:
        reader.close()
    return acknowledged[_WARM_UP:], read[_WARM_UP:]


class _Reader:
    """Follows the topic from its end on, on a thread."""

    def __init__(self, servers: str, topic: str) -> None:
        self.has_it = threading.Event()
        self.had_it = 0.0  # when
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "none",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        _, end = self._consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), timeout=_ANSWER_S)
        self._consumer.assign([confluent_kafka.TopicPartition(topic, 0, end)])
        self._closing = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._closing:
            if self._consumer.poll(0.1) is not None:
                self.had_it = time.perf_counter()
                self.has_it.set()

    def close(self) -> None:
        self._closing = True
        self._thread.join()
        self._consumer.close()
