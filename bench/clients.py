"""Would another Kafka client be worth having? kafka-python beside confluent-kafka, in one run.

What a shard and a gateway do with a client, without the rest: produce with acknowledgement by all, and consume by
assignment; records of a thousand commands, and of one. Commands per second by the clock, and the CPU seconds of this
process per million commands: a shard shares its interpreter with the client.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import confluent_kafka
from engram.codec.record import Kind
from engram.dev.kafka import Brokers
from engram.log.kafka import clients
from engram.log.kafka.settings import KafkaSettings, parse_kafka_url
from engram.log.open import open_log
from kafka import TopicPartition

from bench.logs import BATCH, BATCHES, _entries
from bench.result import Result, Row
from bench.workload import app

REPETITIONS = 5
SINGLES = 20_000
_ANSWER_S = 30.0


def measure() -> Result:
    result = Result(
        f"Kafka clients: {BATCHES} records of {BATCH} commands, {SINGLES:,} of one; {REPETITIONS} repetitions"
    )
    with Brokers() as brokers:
        for commands, records in ((BATCH, BATCHES), (1, SINGLES)):
            values = [entry.payload for entry in _entries(records, commands)]
            topic = f"clients-{commands}"
            open_log(brokers.url(topic), app.name, partitions=1, create=True).close()
            settings = parse_kafka_url(brokers.url(topic))
            contenders = {"kafka-python": _KafkaPython(settings), "confluent-kafka": _Confluent(settings)}
            figures: dict[tuple[str, str], list[tuple[float, float]]] = {}
            start = 0
            for _ in range(REPETITIONS):
                for name, client in contenders.items():
                    produced = _cost(records * commands, partial(client.produce, values))
                    consumed = _cost(records * commands, partial(client.consume, start, records))
                    figures.setdefault((name, "produce"), []).append(produced)
                    figures.setdefault((name, "consume"), []).append(consumed)
                    start += records
            for (name, what), costs in sorted(figures.items(), key=lambda item: item[0][1], reverse=True):
                case = f"{name}: {what}, {commands} a record"
                result.rows.append(Row.of(case, [rate for rate, _ in costs], "commands/s"))
                result.rows.append(Row.of(case, [cpu for _, cpu in costs], "CPU s per million"))
            for client in contenders.values():
                client.close()
    return result


def _cost(commands: int, work: Callable[[], None]) -> tuple[float, float]:
    cpu, clock = time.process_time(), time.perf_counter()
    work()
    return commands / (time.perf_counter() - clock), (time.process_time() - cpu) / commands * 1e6


_HEADERS = [("engram", Kind.COMMANDS.value.encode())]


class _KafkaPython:
    def __init__(self, settings: KafkaSettings) -> None:
        self._topic = settings.topic
        self._producer = clients.producer(settings)
        self._consumer = clients.consumer(settings)
        self._place = TopicPartition(self._topic, 0)
        self._consumer.assign([self._place])

    def produce(self, values: list[bytes]) -> None:
        sent = [self._producer.send(self._topic, value=value, headers=_HEADERS, partition=0) for value in values]
        self._producer.flush(_ANSWER_S)
        assert all(future.succeeded() for future in sent)

    def consume(self, offset: int, records: int) -> None:
        self._consumer.seek(self._place, offset)
        found = 0
        while found < records:
            found += sum(map(len, self._consumer.poll(timeout_ms=1000, max_records=1000).values()))

    def close(self) -> None:
        self._producer.close(timeout=1)
        self._consumer.close()


class _Confluent:
    def __init__(self, settings: KafkaSettings) -> None:
        servers = ",".join(settings.servers)
        self._topic = settings.topic
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": servers,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 0,
                "message.max.bytes": clients.MESSAGE_BYTES,
                "queue.buffering.max.messages": 1_000_000,
            }
        )
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "none",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "max.partition.fetch.bytes": clients.MESSAGE_BYTES,
            }
        )

    def produce(self, values: list[bytes]) -> None:
        failed: list[object] = []
        for value in values:
            self._producer.produce(
                self._topic,
                value,
                partition=0,
                headers=_HEADERS,
                on_delivery=lambda e, _: failed.append(e) if e else None,
            )
        assert self._producer.flush(_ANSWER_S) == 0
        assert not failed

    def consume(self, offset: int, records: int) -> None:
        self._consumer.assign([confluent_kafka.TopicPartition(self._topic, 0, offset)])
        found = 0
        while found < records:
            messages = self._consumer.consume(min(1000, records - found), timeout=1.0)
            # As our log needs them: value, headers and time are made into Python objects.
            found += len([(m.value(), m.headers(), m.timestamp(), m.offset()) for m in messages])

    def close(self) -> None:
        self._consumer.close()
