"""Commands that any Kafka client in any language writes: one plain JSON record each, with its name in a header."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import uuid4

import pytest
from engram.codec.codec import Codec
from engram.codec.record import Kind
from engram.dev.kafka import Brokers
from engram.image.image import Image
from engram.log.base import READ_BYTES, Entry
from engram.log.kafka.log import KafkaLog
from engram.log.kafka.settings import parse_kafka_url
from engram.log.partitioner import partition_of
from engram.log.scan import scan
from engram.shard.replay import replay_until
from kafka import KafkaProducer

from tests.serving.counter import Add, Counter, app
from tests.shard.network import Network

DEADLINE_S = 30.0
PARTITIONS = 4
CODEC = Codec(app)
EVE = next(key for key in map("eve{}".format, range(100)) if partition_of(key, PARTITIONS) == 3)
WRONG = next(key for key in map("wrong{}".format, range(100)) if partition_of(key, PARTITIONS) == 0)


@pytest.fixture(scope="module")
def url(kafka: Brokers) -> str:
    """A log that the tests of this file share: each takes a key, or a topic, of its own."""
    url = kafka.url(f"plain-{uuid4().hex[:8]}")
    KafkaLog(parse_kafka_url(url), app.name, partitions=PARTITIONS, create=True).close()
    return url


@pytest.fixture(scope="module")
def log(url: str) -> Iterator[KafkaLog]:
    log = KafkaLog(parse_kafka_url(url), app.name)
    yield log
    log.close()


@pytest.fixture
def new_log(kafka: Brokers) -> Iterator[KafkaLog]:
    """A log of this test alone, with one partition."""
    log = KafkaLog(parse_kafka_url(kafka.url(f"plain-{uuid4().hex[:8]}")), app.name, partitions=1, create=True)
    yield log
    log.close()


class Stranger:
    """A client that knows Kafka, and nothing of Engram."""

    def __init__(self, brokers: Brokers, **options: Any) -> None:
        self.producer = KafkaProducer(bootstrap_servers=brokers.bootstrap, **options)

    def write(  # noqa: PLR0917 - what a record has
        self,
        log: KafkaLog,
        key: bytes | None,
        value: bytes | None = b'{"by":1}',
        name: str | None = "add",
        version: str | None = "1",
        id: str | None = None,  # noqa: A002 - the header's name
        partition: int | None = None,
    ) -> tuple[int, int]:
        """Partition and offset of one command."""
        said = {"name": name, "version": version, "id": id}
        headers = [(header, text.encode()) for header, text in said.items() if text is not None]
        sent = self.producer.send(log._settings.topic, value, key, headers, partition).get(timeout=DEADLINE_S)
        return sent.partition, sent.offset


@pytest.fixture(scope="module")
def stranger(kafka: Brokers) -> Iterator[Stranger]:
    stranger = Stranger(kafka)
    yield stranger
    stranger.producer.close()


def replayed(log: KafkaLog, partition: int) -> Image:
    """The partition's image from zero."""
    image = Image(partition, CODEC)
    replay_until(image, log, log.end(partition), effects=lambda *_: None, progress=lambda: None)
    return image


def counter(image: Image, key: str) -> Counter | None:
    found = image.entities["counter"].get(key)
    assert found is None or isinstance(found, Counter)
    return found


def wait_for_end(log: KafkaLog, partition: int, end: int) -> None:
    """Kafka marks a transaction's end a moment after it has told the writer."""
    deadline = time.monotonic() + DEADLINE_S
    while log.end(partition) < end:
        assert time.monotonic() < deadline, "the end of the transaction does not come"


# Commands


def test_a_plain_record_is_a_command(log: KafkaLog, stranger: Stranger):
    """Key, JSON and the headers name and version are enough; Kafka's own partitioner finds the entity's partition."""
    partition, offset = stranger.write(log, b"ada", json.dumps({"by": 3}).encode())
    image = replayed(log, partition)
    (record,) = log.read(partition, offset, limit=1)

    assert counter(image, "ada").value == 3
    assert image.quarantine.count == 0
    assert record.kind is Kind.PLAIN
    assert abs(record.time - time.time() * 1000) < 60_000


def test_plain_commands_are_handled_by_a_shard_like_any_other(new_log: KafkaLog, stranger: Stranger):
    """A running shard takes them in their place among a gateway's, and a replay has the same digest."""
    network = Network(app=app, log=new_log)
    try:
        owner = network.start()
        for by in (1, 10, 100):
            stranger.write(new_log, b"ada", b'{"by":%d}' % by)
            network.send("ada", Add(by=by * 2))
        network.settle(owner)
        image = owner.image(0)

        assert counter(image, "ada").value == 333
        assert [record.kind for record in scan(new_log, 0)] == [
            Kind.EPOCH,
            *[Kind.PLAIN, Kind.COMMANDS] * 3,
        ]
        assert len(owner.replies()) == 3
        assert image.digest() == network.replayed(0).digest()
    finally:
        network.close()


def test_the_same_id_twice_changes_state_once(log: KafkaLog, stranger: Stranger):
    """Who does not know whether a record arrived sends it again with the same id."""
    partition, _ = stranger.write(log, b"bob", b'{"by":5}', id="order-1")
    stranger.write(log, b"bob", b'{"by":5}', id="order-1")
    stranger.write(log, b"bob", b'{"by":5}', id="order-2")
    image = replayed(log, partition)

    assert counter(image, "bob").value == 10


@pytest.mark.parametrize("id", [None, ""])
def test_commands_without_an_id_all_count(log: KafkaLog, stranger: Stranger, id: str | None):  # noqa: A002
    """Without an id, or with an empty one, two equal commands are two commands."""
    key = f"carl-{id}"
    partition, _ = stranger.write(log, key.encode(), id=id)
    stranger.write(log, key.encode(), id=id)

    assert counter(replayed(log, partition), key).value == 2


def test_a_rejected_command_is_no_mistake(log: KafkaLog, stranger: Stranger):
    """A handler's refusal changes nothing, and sets nothing aside."""
    partition, offset = stranger.write(log, b"dora", b'{"by":-1}')
    image = replayed(log, partition)

    assert counter(image, "dora") is None
    assert offset not in [row.offset for row in image.quarantine.listed]


def test_a_batch_that_is_large_when_unpacked_is_read_in_pieces(kafka: Brokers, new_log: KafkaLog):
    """What a client has compressed may be more than one read brings: it comes in pieces, and comes again."""
    writer = Stranger(
        kafka, compression_type="gzip", batch_size=30_000_000, max_request_size=30_000_000, linger_ms=5000
    )
    for number in range(24):
        writer.producer.send(new_log._settings.topic, b"%d" % number + b" " * 1_000_000, partition=0)
    writer.producer.flush()
    writer.producer.close()
    first = new_log.read(0, 0, limit=100)
    second = list(scan(new_log, 0, len(first)))
    new_log.append([Entry(0, Kind.COMMANDS, 0, b"later")])
    again = list(scan(new_log, 0, len(first)))

    assert len(first) == READ_BYTES // 1_000_001
    assert [(record.offset, record.kind) for record in first + second] == [(n, Kind.PLAIN) for n in range(24)]
    assert again[: len(second)] == second
    assert new_log.read(0, 24, limit=100)[0].payload == b"later"


# Mistakes

HAS = "app counters has no command named 'nope' (it has: add, fail, mark)"
MISTAKES = {
    "no name": ({"name": None}, "it has no header `name`: write the command's name there"),
    "an unknown name": ({"name": "nope"}, HAS),
    "no version": ({"version": None}, "its header `version` is '': write the command's version there, a number"),
    "a bad version": ({"version": "one"}, "its header `version` is 'one': write the command's version there, a number"),
    "a version to come": (
        {"version": "7"},
        "Add is at version 7 there, but this app knows only up to 1: run the newer code",
    ),
    "not JSON": ({"value": b"add one"}, "Add version 1: value: Invalid JSON: expected value at line 1 column 1"),
    "nothing": ({"value": None}, "Add version 1: value: Invalid JSON: EOF while parsing a value at line 1 column 0"),
    "a wrong field": ({"value": b'{"by":"much"}'}, "Add version 1: by: Input should be a valid integer"),
    "an unknown field": ({"value": b'{"bye":1}'}, "Add version 1: bye: Extra inputs are not permitted"),
    "no key": ({"key": None}, "it has no key, or one that is not UTF-8: write the entity's key there"),
    "a key that is no text": (
        {"key": b"\xff"},
        "it has no key, or one that is not UTF-8: write the entity's key there",
    ),
    "a key in the wrong partition": (
        {"key": WRONG.encode()},
        f"the key '{WRONG}' belongs into partition 0: use Kafka's default partitioner, which is murmur2",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_set_aside_and_the_partition_goes_on(log: KafkaLog, stranger: Stranger, mistake: str):
    """The record is quarantined with a sentence that says what is wrong; the next ones are handled."""
    how, error = MISTAKES[mistake]
    record: dict[str, Any] = {"key": EVE.encode(), **how}
    good = log.end(3) - len(replayed(log, 3).quarantine.listed)
    partition, offset = stranger.write(log, **record, partition=3)
    stranger.write(log, EVE.encode(), partition=3)
    image = replayed(log, 3)
    row = image.quarantine.listed[-1]

    assert (partition, row.offset) == (3, offset)
    assert row.error.startswith(f"Corrupt: Record {offset} of partition 3 cannot be decoded: {error}")
    assert counter(image, EVE).value == good + 1


def test_a_replay_of_mistakes_has_the_same_digest(new_log: KafkaLog, stranger: Stranger):
    """What was set aside is part of the image: the same live, replayed, and on another owner."""
    network = Network(app=app, log=new_log)
    try:
        owner = network.start()
        for how, _ in list(MISTAKES.values())[:-1]:
            record: dict[str, Any] = {"key": EVE.encode(), **how}
            stranger.write(new_log, **record, id="again", partition=0)
            stranger.write(new_log, EVE.encode(), id="again", partition=0)
        network.settle(owner)
        live = owner.image(0)
        again = network.start().image(0)

        assert live.quarantine.count == len(MISTAKES) - 1
        assert counter(live, EVE).value == 1
        assert live.digest() == again.digest() == network.replayed(0).digest()
    finally:
        network.close()


# Transactions


def kinds(log: KafkaLog, ends: Sequence[int]) -> list[Kind]:
    """What one sees who follows a log, up to its end."""
    found: list[Kind] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(found) < ends[-1]:
        assert time.monotonic() < deadline, "the records do not come"
        records = log.read(0, len(found), limit=3)
        assert [record.offset for record in records] == list(range(len(found), len(found) + len(records)))
        found += [record.kind for record in records]
    return found


def test_what_a_client_took_back_is_not_there(kafka: Brokers, new_log: KafkaLog):
    """Aborted records are never seen; they, and Kafka's marks, leave places with nothing, and offsets have no gap."""
    follower = KafkaLog(new_log._settings, app.name)
    watch = follower.watch()
    writer = Stranger(kafka, transactional_id=f"t-{uuid4().hex[:8]}")
    writer.producer.init_transactions()
    ends = []
    for commit in (True, False, True, False):
        writer.producer.begin_transaction()
        for _ in range(2):
            writer.write(new_log, b"ada", b'{"by":1}' if commit else b'{"by":1000}')
        end = writer.producer.commit_transaction if commit else writer.producer.abort_transaction
        end()
        ends.append(3 * len(ends) + 3)
        wait_for_end(new_log, 0, ends[-1])
    writer.producer.close()
    plain, nothing = Kind.PLAIN, Kind.NOTHING
    expected = [plain, plain, nothing, nothing, nothing, nothing] * 2
    image = replayed(new_log, 0)

    assert new_log.end(0) == 12
    assert kinds(new_log, ends) == expected
    assert kinds(follower, ends) == expected
    assert counter(image, "ada").value == 4
    assert (image.offset, image.changed) == (12, 8)
    assert image.digest() == replayed(follower, 0).digest()
    watch.close()
    follower.close()


def test_a_log_may_end_with_a_mark(kafka: Brokers, new_log: KafkaLog):
    """The mark of a transaction's end at the very end of a partition is read as a place with nothing."""
    writer = Stranger(kafka, transactional_id=f"t-{uuid4().hex[:8]}")
    writer.producer.init_transactions()
    writer.producer.begin_transaction()
    writer.write(new_log, b"ada")
    writer.producer.commit_transaction()
    writer.producer.close()
    wait_for_end(new_log, 0, 2)
    only_mark = new_log.read(0, 1, limit=10)
    image = replayed(new_log, 0)

    assert [(record.offset, record.kind) for record in only_mark] == [(1, Kind.NOTHING)]
    assert image.offset == new_log.end(0) == 2
    assert counter(image, "ada").value == 1


def test_a_shard_passes_over_marks(kafka: Brokers, new_log: KafkaLog):
    """A running shard comes to the end of a log that ends with a mark, and goes on with what comes after it."""
    network = Network(app=app, log=new_log)
    writer = Stranger(kafka, transactional_id=f"t-{uuid4().hex[:8]}")
    writer.producer.init_transactions()
    try:
        owner = network.start()
        for commit in (True, False):
            writer.producer.begin_transaction()
            writer.write(new_log, b"ada", b'{"by":1}')
            (writer.producer.commit_transaction if commit else writer.producer.abort_transaction)()
        wait_for_end(new_log, 0, 5)
        network.settle(owner)
        at_the_mark = owner.image(0).offset
        network.send("ada", Add(by=10))
        network.settle(owner)

        assert at_the_mark == 5
        assert counter(owner.image(0), "ada").value == 11
        assert owner.image(0).digest() == network.replayed(0).digest()
    finally:
        network.close()
        writer.producer.close()
