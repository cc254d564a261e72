"""Generated histories through a real broker: the same that hold on the log in memory."""

from __future__ import annotations

import time
from typing import ClassVar
from uuid import uuid4

from engram.dev.kafka import Brokers
from engram.log.kafka.log import KafkaLog
from engram.log.kafka.settings import parse_kafka_url
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.shard.network import Faulty, Network, Owner
from tests.shard.test_properties import PARTITIONS, Histories

_FETCHED_S = 30.0


class KafkaHistories(Histories):
    """Each shard opens the log for itself, as processes do."""

    brokers: ClassVar[Brokers]

    def make_network(self) -> Network:
        where = parse_kafka_url(self.brokers.url(f"history-{uuid4().hex[:8]}"))
        whole = FaultyKafkaLog(where, "social", partitions=PARTITIONS, create=True)
        return Network(log=whole, reopen=lambda: _Follows(whole, where))

    def meet_successor(self, old: Owner) -> None:
        """What a broker has taken need not come with the next fetch: that has its time."""
        deadline = time.monotonic() + _FETCHED_S
        while "serving" in old.states.values() and time.monotonic() < deadline:
            super().meet_successor(old)

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self.log.close()


class FaultyKafkaLog(Faulty, KafkaLog):
    """A log on Kafka that fails when told to."""


class _Follows(FaultyKafkaLog):
    """One that fails when another is told to."""

    def __init__(self, other: FaultyKafkaLog, where: object) -> None:
        self._other = other
        super().__init__(where, "social")

    @property
    def full(self) -> bool:
        return self._other.full

    @property
    def unsure(self) -> bool:
        return self._other.unsure


def test_generated_histories_hold_on_kafka(kafka: Brokers):
    """Whatever crashes, moves or comes twice: live, replayed and from snapshots it is the same, and nothing is lost."""
    KafkaHistories.brokers = kafka
    few = settings(max_examples=5, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(KafkaHistories, settings=few)
