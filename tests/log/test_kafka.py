"""The log on a real Kafka broker."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest
from engram.dev.kafka import Brokers
from engram.log.base import Log
from engram.log.kafka.log import KafkaLog
from engram.log.kafka.settings import parse_kafka_url
from engram.testing.logs import LogConformance


class TestConformance(LogConformance):
    """Kafka keeps the contract of a log."""

    @pytest.fixture(autouse=True)
    def _topic(self, kafka: Brokers) -> None:
        self._url = kafka.url(f"conformance-{uuid4().hex[:8]}")

    def make(self, tmp_path: Path, app: str, partitions: int) -> Log:
        return KafkaLog(parse_kafka_url(self._url), app, partitions=partitions, create=True)

    def reopen(self, log: Log, tmp_path: Path, app: str, partitions: int) -> Log:
        return KafkaLog(parse_kafka_url(self._url), app, partitions=partitions)

    def url(self, tmp_path: Path) -> str:
        return self._url
