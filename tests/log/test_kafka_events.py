"""Events on a real Kafka broker, as other systems read them: each once and in order, whoever let them out."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import datetime
from itertools import count
from typing import Any
from uuid import uuid4

import pytest
from engram.dev.kafka import Brokers
from engram.errors import Corrupt, Fenced, Unavailable
from engram.log.kafka.log import KafkaLog
from engram.log.kafka.problems import explain
from engram.log.kafka.settings import parse_kafka_url
from engram.model.effects import OutEvent
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError, ProducerFencedError

PARTITIONS = 64  # each test takes some of its own
DEADLINE_S = 30.0
_FIRST = (-1, -1, -1)

# Lets one event out, begins a transaction with more, says so, and dies before it is committed.
KILLED = """
import os, signal, sys
from engram.model.effects import OutEvent
from engram.log.kafka.form import event_headers
from engram.log.kafka.log import KafkaLog
from engram.log.kafka.settings import parse_kafka_url

url, partition = sys.argv[1], int(sys.argv[2])
log = KafkaLog(parse_kafka_url(url), "shop")
log.append([], [OutEvent(partition, 0, 0, 0, "sold", 1, 0, "ada", b"{}")])
producer = log._events._out[partition].producer
producer.begin_transaction()
for offset in (1, 2):
    event = OutEvent(partition, offset, 0, 0, "sold", 1, 0, "ada", b'{"never":"seen"}')
    producer.send("%s.events" % log._settings.topic, value=event.body, key=b"ada",
                  headers=event_headers(event, "shop"), partition=partition).get(timeout=30)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def url(kafka: Brokers) -> str:
    """A log that the tests of this file share."""
    url = kafka.url(f"events-{uuid4().hex[:8]}")
    KafkaLog(parse_kafka_url(url), "shop", partitions=PARTITIONS, create=True).close()
    return url


_partitions = count()


@pytest.fixture
def partition() -> int:
    """One that no other test uses."""
    return next(_partitions)


@pytest.fixture(scope="module")
def log(url: str) -> Iterator[KafkaLog]:
    log = KafkaLog(parse_kafka_url(url), "shop")
    yield log
    log.close()


@pytest.fixture
def other(url: str) -> Iterator[KafkaLog]:
    """The same log, as the next owner's process has it."""
    other = KafkaLog(parse_kafka_url(url), "shop")
    yield other
    other.close()


class Seen:
    """What somebody sees who has only Kafka: a consumer of committed records."""

    def __init__(self, brokers: Brokers, topic: str) -> None:
        self._consumer = KafkaConsumer(
            bootstrap_servers=brokers.bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
        )
        self._uncommitted = KafkaConsumer(bootstrap_servers=brokers.bootstrap)
        self._topic = topic

    def all(self, partition: int, *, settled: bool = True) -> list[Any]:
        """The events that are there when no transaction is open any more; or those that can be seen now.

        Kafka marks a transaction as committed a moment after it has told the writer.
        """
        place = TopicPartition(self._topic, partition)
        self._consumer.assign([place])
        self._consumer.seek_to_beginning(place)
        deadline = time.monotonic() + DEADLINE_S
        while settled and self._end(place) != self._uncommitted.end_offsets([place])[place]:
            assert time.monotonic() < deadline, "a transaction stays open"
        end = self._end(place)
        seen: list[Any] = []
        while self._consumer.position(place) < end:
            assert time.monotonic() < deadline, "the events do not come"
            seen += self._consumer.poll(timeout_ms=100).get(place, [])
        return seen

    def _end(self, place: TopicPartition) -> int:
        return int(self._consumer.end_offsets([place])[place])

    def places(self, partition: int, *, settled: bool = True) -> list[str]:
        return [dict(event.headers)["ce_id"].decode() for event in self.all(partition, settled=settled)]

    def close(self) -> None:
        self._consumer.close()
        self._uncommitted.close()


@pytest.fixture(scope="module")
def seen(kafka: Brokers, url: str) -> Iterator[Seen]:
    seen = Seen(kafka, f"{parse_kafka_url(url).topic}.events")
    yield seen
    seen.close()


def event(partition: int, offset: int, index: int = 0, number: int = 0, body: bytes = b"{}") -> OutEvent:
    return OutEvent(partition, offset, index, number, "sold", 1, 1_700_000_000_123, "ada", body)


def ids(events: Sequence[OutEvent]) -> list[str]:
    return [f"{e.partition}:{e.offset}.{e.index}.{e.number}" for e in events]


# What other systems see


def test_an_event_has_the_form_of_cloud_events(log: KafkaLog, seen: Seen, partition: int):
    """In binary mode: the attributes are headers, the value is the event's JSON, the key is its entity's."""
    body = '{"what":"tea","to":"é"}'.encode()
    log.append([], [OutEvent(partition, 12, 3, 1, "sold", 2, 1_700_000_000_123, "ada é", body, "4:5.6")])
    (found,) = seen.all(partition)
    headers = {name: value.decode() for name, value in found.headers}

    assert headers == {
        "ce_specversion": "1.0",
        "ce_id": f"{partition}:12.3.1",
        "ce_source": "/engram/shop",
        "ce_type": "sold",
        "ce_subject": "ada é",
        "ce_time": "2023-11-14T22:13:20.123+00:00",
        "content-type": "application/json",
        "ce_typeversion": "2",
        "ce_position": f"{partition}:12.3",
        "ce_number": "1",
        "ce_root": "4:5.6",
    }
    assert datetime.fromisoformat(headers["ce_time"]).timestamp() == 1_700_000_000.123
    assert found.key.decode() == "ada é"
    assert json.loads(found.value) == {"what": "tea", "to": "é"}
    assert found.timestamp == 1_700_000_000_123


def test_each_event_is_seen_once_and_in_order(log: KafkaLog, seen: Seen, partition: int):
    """Over several appends, what is appended again adds nothing."""
    events = [event(partition, offset, 0, number) for offset in range(3) for number in range(2)]
    log.append([], events[:2])
    log.append([], events[:4])
    log.append([], events[3:])
    log.append([], events)

    assert seen.places(partition) == ids(events)


def test_appends_to_several_partitions_go_to_each(log: KafkaLog, seen: Seen, partition: int):
    """One append may have the events of several partitions, in any order of partitions."""
    another = next(_partitions)
    log.append([], [event(p, offset) for offset in range(3) for p in (another, partition)])

    assert seen.places(partition) == ids([event(partition, offset) for offset in range(3)])
    assert seen.places(another) == ids([event(another, offset) for offset in range(3)])


# Owners


def test_the_next_owner_knows_what_is_out(log: KafkaLog, other: KafkaLog, seen: Seen, partition: int):
    """It appends all events since its snapshot, and those that are out already are left as they are."""
    events = [event(partition, offset) for offset in range(5)]
    log.append([], events[:3])
    other.append([], [e._replace(body=b'{"again":true}') for e in events])

    assert seen.places(partition) == ids(events)
    assert [found.value for found in seen.all(partition)] == [b"{}"] * 3 + [b'{"again":true}'] * 2


def test_an_owner_that_was_replaced_is_fenced(log: KafkaLog, other: KafkaLog, seen: Seen, partition: int):
    """The broker refuses whoever let out a partition's events before the newest owner."""
    topic = log._settings.topic
    log.append([], [event(partition, 0)])
    other.append([], [event(partition, 1)])
    with pytest.raises(Fenced) as refused:
        log.append([], [event(partition, 1), event(partition, 2, body=b'{"by":"the old one"}')])

    assert str(refused.value) == f"A newer owner lets out the events of {topic} now."
    assert seen.places(partition) == ids([event(partition, 0), event(partition, 1)])


def test_a_fenced_owner_that_tries_again_takes_over(log: KafkaLog, other: KafkaLog, seen: Seen, partition: int):
    """Whoever is fenced by mistake, as after a long pause, begins as a new owner would: nothing is doubled or lost."""
    events = [event(partition, offset) for offset in range(4)]
    log.append([], events[:1])
    other.append([], events[:2])
    with pytest.raises(Fenced):
        log.append([], events[1:3])
    log.append([], events[1:3])
    with pytest.raises(Fenced):
        other.append([], events)
    other.append([], events)

    assert seen.places(partition) == ids(events)


def test_partitions_are_fenced_apart(log: KafkaLog, other: KafkaLog, seen: Seen, partition: int):
    """Who lost one partition keeps letting out the events of its others, in the same append."""
    kept = next(_partitions)
    log.append([], [event(partition, 0), event(kept, 0)])
    other.append([], [event(partition, 1)])
    with pytest.raises(Fenced):
        log.append([], [event(partition, 1), event(kept, 1)])

    assert seen.places(kept) == ids([event(kept, 0), event(kept, 1)])


# Crashes


def test_a_killed_owners_transaction_is_never_seen(url: str, other: KafkaLog, seen: Seen, partition: int):
    """SIGKILL between sending and committing: readers see nothing of it, and the next owner need not wait for it."""
    killed = subprocess.run([sys.executable, "-c", KILLED, url, str(partition)], check=False, timeout=60)
    before = seen.places(partition, settled=False)
    started = time.monotonic()
    other.append([], [event(partition, offset) for offset in range(4)])
    took = time.monotonic() - started

    assert killed.returncode == -signal.SIGKILL
    assert before == ids([event(partition, 0)])
    assert seen.places(partition) == ids([event(partition, offset) for offset in range(4)])
    assert [found.value for found in seen.all(partition)] == [b"{}"] * 4
    assert took < 10, "the broker ends a transaction by itself after 60 s"


def test_an_owner_that_could_not_look_looks_again(
    url: str, other: KafkaLog, seen: Seen, partition: int, monkeypatch: pytest.MonkeyPatch
):
    """A takeover that fails half way, when Kafka does not say what is out, is not taken for an empty topic."""
    events = [event(partition, offset) for offset in range(3)]
    other.append([], events[:2])
    log = KafkaLog(parse_kafka_url(url), "shop")

    def no_answer(*_place: object) -> None:
        raise Unavailable("Kafka does not answer.")

    with monkeypatch.context() as fault:
        fault.setattr(log._reader, "last", no_answer)
        with pytest.raises(Unavailable, match="does not answer"):
            log.append([], events)
    log.append([], events)
    log.close()

    assert seen.places(partition) == ids(events)


def test_a_stranger_in_the_events_topic_is_told(kafka: Brokers, log: KafkaLog, partition: int):
    """Somebody else's record there says nothing of what is out: the owner stops, and the message says where."""
    topic = f"{log._settings.topic}.events"
    stranger = KafkaProducer(bootstrap_servers=kafka.bootstrap)
    stranger.send(topic, b"hello", partition=partition).get(timeout=DEADLINE_S)
    stranger.close()
    with pytest.raises(Corrupt) as refused:
        log.append([], [event(partition, 0)])

    assert str(refused.value) == (
        f"Record 0 of partition {partition} of {topic} is no event of Engram's: only the log's owners may write there."
    )


# Any history


def test_an_owner_that_hears_between_two_events_that_it_is_replaced_says_so():
    """The client's own thread hears it: then the next record is refused with an error that has that one inside."""
    fenced = KafkaError("a previous request has failed with errors.", ProducerFencedError())

    assert isinstance(explain(fenced, parse_kafka_url("kafka://nowhere/shop"), "let out events to"), Fenced)


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Steps of owner (0 or 1), first and end: who appends which of the events. Every owner goes back at most to the
    beginning, and nobody leaves one out; in the end all were appended."""
    total = draw(st.integers(1, 12))
    steps = []
    out = 0
    while out < total:
        owner = draw(st.integers(0, 1))
        first = draw(st.integers(0, out))
        end = draw(st.integers(first, total))
        steps.append((owner, first, end))
        out = max(out, end)
    return steps


@given(history=histories())
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_history_of_owners_lets_out_each_event_once(
    url: str, seen: Seen, log: KafkaLog, other: KafkaLog, history: list[tuple[int, int, int]]
):
    """However appends are cut, repeated, and spread over owners that replace each other: each event once, in order."""
    partition = next(_partitions)
    owners = log, other
    events = [event(partition, offset // 3, offset % 3, 0) for offset in range(max(end for *_, end in history))]
    for owner, first, end in history:
        try:
            owners[owner].append([], events[first:end])
        except Fenced:
            owners[owner].append([], events[first:end])

    assert seen.places(partition) == ids(events)
    assert [e[1:4] for e in log.events(partition, after=_FIRST, limit=100)] == [e[1:4] for e in events]


def test_events_that_expired_before_the_commit_come_later(kafka_cluster: Brokers):
    """A transaction is not committed without records that the client has given up: the next try has all, in order.

    The leader of a partition stalls for longer than a delivery may take, while the transaction's coordinator, mostly
    another broker, would commit what has come.
    """
    topic = f"stalled-{uuid4().hex[:8]}"
    settings = parse_kafka_url(f"{kafka_cluster.url(topic)}?request_timeout_ms=1000&delivery_timeout_ms=1500")
    log = KafkaLog(settings, "shop", partitions=4, create=True)
    try:
        for partition in range(4):
            log.append([], [event(partition, 0)])
            leader = kafka_cluster.leader(f"{topic}.events", partition)
            stalled = [event(partition, 1), event(partition, 2)]
            kafka_cluster.pause(leader)
            with ThreadPoolExecutor(1) as pool:
                under_way = pool.submit(log.append, [], stalled)
                wait([under_way], timeout=2.2)
                kafka_cluster.resume(leader)
                failed = under_way.exception()
            assert failed is None or isinstance(failed, Unavailable)
            _until_let_out(log, [*stalled, event(partition, 3)])
            kafka_cluster.wait_in_sync(DEADLINE_S)

        out = {p: [e.offset for e in log.events(p, after=_FIRST, limit=99)] for p in range(4)}
        assert list(out.values()) == [[0, 1, 2, 3]] * 4
    finally:
        log.close()


def _until_let_out(log: KafkaLog, events: Sequence[OutEvent]) -> None:
    """As a shard does: again until it is known."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            log.append([], events)
        except Unavailable:
            if time.monotonic() > deadline:
                raise
        else:
            return
