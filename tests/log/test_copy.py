"""Copying a log: the same records at the same places, between SQLite and a real Kafka, either way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pytest
from engram import Corrupt, Misuse
from engram.codec.record import Kind, Origin, Record, encode_messages
from engram.dev.kafka import Brokers
from engram.log.base import Entry, Log
from engram.log.copy import Copied, Progress, copy_log, event_pages
from engram.log.memory import MemoryLog
from engram.log.open import open_log
from engram.log.sqlite import SqliteLog
from engram.model.effects import Message, OutEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition

from sample_apps.social.commands import Follow, Publish, Register
from tests.dev.left import eventually
from tests.shard.network import Network

PARTITIONS = 4
EVENT = OutEvent(1, 0, 0, 0, "published", 1, 5, "ada", b'{"author":"ada","post":"p"}')


class Contents(NamedTuple):
    """Everything that a log has, by partition; digests are those of a replay from zero."""

    records: list[list[Record]]
    events: list[list[OutEvent]]
    digests: list[str]


def contents(log: Log) -> Contents:
    network = Network(log=log)
    partitions = range(log.partitions)
    return Contents(
        [list(records(log, partition)) for partition in partitions],
        [[event for page in event_pages(log, partition) for event in page] for partition in partitions],
        [network.replayed(partition).digest() for partition in partitions],
    )


def records(log: Log, partition: int) -> Iterator[Record]:
    offset = 0
    while some := log.read(partition, offset, limit=7):
        yield from some
        offset = some[-1].offset + 1


def origins(log: Log) -> list[Origin | None]:
    return [log.last_origin(to, of) for to in range(log.partitions) for of in range(log.partitions)]


def copied(source: Log, target: Log) -> list[Copied]:
    return copy_log(source, target, progress=lambda _progress: None)


def history(network: Network) -> None:
    """What a few people do, under two owners one after the other; in the end everything is handled, and snapshotted."""
    people = [f"user{number}" for number in range(30)]
    for turn in range(2):
        owner = network.start()
        network.send_all([network.envelope(key, Register(name=key)) for key in people])  # refused the second time
        for step in range(1, 4):
            network.clock.now += 1000
            network.send_all(
                [network.envelope(key, Follow(whom=people[(i + step + turn) % 30])) for i, key in enumerate(people)]
            )
            network.send(people[step], Publish(text=f"post {step} of turn {turn}: ḗ\u2028"), idempotency_key=f"k{step}")
            network.settle(owner)
        owner.stop() if turn else owner.kill()


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[SqliteLog]:
    """A log with commands, messages, epochs and events in all partitions."""
    history(Network(log=SqliteLog(tmp_path / "social.db", "social", partitions=PARTITIONS, create=True)))
    with closing(SqliteLog(tmp_path / "social.db", "social")) as log:
        yield log


@pytest.fixture
def kafka_url(kafka: Brokers) -> str:
    return kafka.url(f"copy-{uuid4().hex[:8]}")


@pytest.fixture
def on_kafka(kafka_url: str) -> Iterator[Log]:
    """A new log on Kafka."""
    with closing(open_log(kafka_url, "social", partitions=PARTITIONS, create=True)) as log:
        yield log


@pytest.fixture
def new(tmp_path: Path) -> Iterator[SqliteLog]:
    """A new log in SQLite."""
    with closing(SqliteLog(tmp_path / "new.db", "social", partitions=PARTITIONS, create=True)) as log:
        yield log


# There and back


def test_a_log_goes_to_kafka_and_back(sqlite: SqliteLog, on_kafka: Log, new: SqliteLog):
    """Records, events, origins and digests are the same on Kafka, and in the SQLite log made from that."""
    there, back = copied(sqlite, on_kafka), copied(on_kafka, new)
    before, between, after = contents(sqlite), contents(on_kafka), contents(new)

    for of_partition in before.records:
        assert {record.kind for record in of_partition} == {Kind.COMMANDS, Kind.MESSAGES, Kind.EPOCH}
    assert all(before.events)
    assert before == between == after
    assert there == back == [Copied(p, len(before.records[p]), len(before.events[p])) for p in range(PARTITIONS)]
    assert origins(sqlite) == origins(on_kafka) == origins(new)
    assert None not in origins(sqlite)


def test_plain_records_and_empty_places_keep_their_kind(on_kafka: Log, kafka: Brokers, kafka_url: str, new: SqliteLog):
    """What other clients wrote in a transaction, or took back, and the marks that Kafka puts behind it, stay places."""
    topic = kafka_url.rpartition("/")[2]
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap, transactional_id=topic)
    producer.init_transactions()
    headers = [("name", b"register"), ("version", b"1"), ("id", b"once")]
    home = Network(log=on_kafka).home("ada")
    for commit in (True, False, True):
        producer.begin_transaction()
        for key in (b"ada", b"\xff"):
            sent = producer.send(topic, b'{"name":"Ada"}', key, headers=headers, partition=home, timestamp_ms=77)
            sent.get(timeout=30)  # otherwise what is taken back would never have been there
        producer.commit_transaction() if commit else producer.abort_transaction()
    producer.close()
    assert eventually(lambda: on_kafka.end(home) == 9, 30)
    one_by_one = [on_kafka.read(home, offset, limit=1) for offset in range(9)]
    copied(on_kafka, new)
    with closing(open_log(kafka.url(f"copy-{uuid4().hex[:8]}"), "social", partitions=PARTITIONS, create=True)) as again:
        copied(new, again)
        found = [list(records(log, home)) for log in (on_kafka, new, again)]

    plain, nothing = Kind.PLAIN, Kind.NOTHING
    assert [r.kind for r in found[0]] == [plain, plain, nothing, nothing, nothing, nothing, plain, plain, nothing]
    assert [record.offset for record in found[0]] == list(range(9))
    assert one_by_one == [[record] for record in found[0]]
    assert found[0] == found[1] == found[2]


payloads = st.binary(max_size=50)
entries = st.lists(
    st.builds(
        Entry,
        partition=st.integers(0, PARTITIONS - 1),
        kind=st.sampled_from([Kind.COMMANDS, Kind.EPOCH, Kind.PLAIN, Kind.NOTHING]),
        time=st.integers(0, 2**42),
        payload=payloads,
    ),
    max_size=40,
)


@settings(max_examples=30, deadline=None)
@given(entries)
def test_whatever_is_in_a_log_is_in_its_copy(tmp_path_factory: pytest.TempPathFactory, given_entries: list[Entry]):
    """Kinds, times, places and bytes are kept, also of payloads that nobody can read."""
    source = MemoryLog("social", PARTITIONS)
    source.append(given_entries)
    path = tmp_path_factory.mktemp("copy") / "log.db"
    with closing(SqliteLog(path, "social", partitions=PARTITIONS, create=True)) as target:
        copied(source, target)
        for partition in range(PARTITIONS):
            assert list(records(target, partition)) == list(records(source, partition))


def test_the_app_goes_on_from_its_snapshots(on_kafka: Log):
    """Positions are the same, so the snapshots of the source are good for the copy: nothing needs to be replayed."""
    before = Network(PARTITIONS)
    history(before)
    copied(before.log, on_kafka)
    after = Network(log=on_kafka, store=before.store)
    owner = after.start()
    state = {partition: owner.partition(partition) for partition in range(PARTITIONS)}
    after.send("newcomer", Register(name="New"))
    after.settle(owner)
    digests = {partition: owner.partition(partition).digest for partition in range(PARTITIONS)}
    after.close()
    before.close()

    assert [state[p].replayed for p in range(PARTITIONS)] == [0] * PARTITIONS
    assert [state[p].digest for p in range(PARTITIONS)] == [before.replayed(p).digest() for p in range(PARTITIONS)]
    assert digests == {partition: after.replayed(partition).digest() for partition in range(PARTITIONS)}
    assert digests != {partition: state[partition].digest for partition in range(PARTITIONS)}


# While others write


def test_a_source_that_is_written_to_is_copied_as_it_was(sqlite: SqliteLog, new: SqliteLog):
    """What comes in after the start is not in the copy, whichever partition it is in; nor are its events."""
    before = contents(sqlite)
    late = [Entry(partition, Kind.NOTHING, 0, b"late") for partition in range(PARTITIONS)]
    events = [EVENT._replace(partition=p, offset=len(before.records[p])) for p in range(PARTITIONS)]
    seen: list[Progress] = []

    def meanwhile(progress: Progress) -> None:
        seen.append(progress)
        sqlite.append(late, events)

    told = copy_log(sqlite, new, progress=meanwhile)

    total = sum(map(len, before.records))
    assert contents(new) == before
    assert [part.records for part in told] == [len(of_partition) for of_partition in before.records]
    assert {progress.of for progress in seen} == {total}
    assert seen[-1].records == total
    assert seen[-1].size == sum(len(record.payload) for of_partition in before.records for record in of_partition)


class Busy(MemoryLog):
    """As soon as the end of partition 0 was asked for, something happens there, and reaches partition 1."""

    def end(self, partition: int) -> int:
        end = super().end(partition)
        if partition == 0:
            message = Message("register", 1, "x", b'{"name":"X"}', Origin(end + 1, 0, 0))
            self.append([Entry(0, Kind.NOTHING, 0, b"") for _ in range(3)])
            payload = encode_messages([message], 0)
            self.append([Entry(1, Kind.MESSAGES, 0, payload, (0, message.origin))])
        return end


def test_no_message_is_copied_without_its_cause():
    """A record that messages in the copy came from is in it, even if it is newer than the end that was seen."""
    target = MemoryLog("social", 2)
    told = copied(Busy("social", 2), target)

    assert told == [Copied(0, 2, 0), Copied(1, 1, 0)]
    assert target.last_origin(1, 0) == Origin(1, 0, 0)


def test_a_target_that_others_write_to_is_refused(sqlite: SqliteLog, new: SqliteLog):
    """A record that came to another place than it had is `Corrupt`, with both places."""

    def meanwhile(_progress: Progress) -> None:
        new.append([Entry(partition, Kind.NOTHING, 0, b"") for partition in range(PARTITIONS)])

    with pytest.raises(
        Corrupt, match=r"Record 0 of partition 1 came to place 1 in the copy: somebody else writes to it"
    ):
        copy_log(sqlite, new, progress=meanwhile)


# Refusals


@pytest.mark.parametrize("there", ["records", "events"])
def test_a_log_that_is_not_empty_is_not_copied_to(sqlite: SqliteLog, new: SqliteLog, there: str):
    """Neither among other records nor among other events; what is there stays as it was."""
    new.append([Entry(3, Kind.NOTHING, 0, b"")] * (there == "records"), [EVENT] * (there == "events"))
    before = contents(new)
    with pytest.raises(Misuse, match=r"is not empty: it has [01] records\. Copy to a new one"):
        copied(sqlite, new)

    assert contents(new) == before


def test_kafka_is_asked_whether_it_is_empty_too(sqlite: SqliteLog, on_kafka: Log):
    """A second copy to the same topics is refused with the number of records that are there."""
    copied(sqlite, on_kafka)
    before = contents(on_kafka)
    count = sum(map(len, before.records))
    with pytest.raises(Misuse, match=rf"is not empty: it has {count} records\."):
        copied(sqlite, on_kafka)

    assert contents(on_kafka) == before


def test_another_number_of_partitions_is_refused(sqlite: SqliteLog):
    """Positions stay, and with them the number of partitions; both numbers are told."""
    target = MemoryLog("social", 5)
    with pytest.raises(Misuse, match=r"has 4 partitions and the one to copy to 5"):
        copied(sqlite, target)


@pytest.mark.parametrize(("cut", "missing"), [("< 2", 0), ("between 3 and 4", 3)])
def test_a_record_that_is_gone_from_sqlite_is_named(sqlite: SqliteLog, new: SqliteLog, cut: str, missing: int):
    """Nothing moves up into its place."""
    sqlite._sql.execute(f"delete from record where partition = 0 and offset {cut}")
    with pytest.raises(Corrupt, match=rf"Record {missing} of partition 0 is (not in the log|needed, but)"):
        copied(sqlite, new)

    assert list(records(new, 0)) == []


def test_a_topic_whose_beginning_is_gone_is_refused(sqlite: SqliteLog, on_kafka: Log, kafka: Brokers, kafka_url: str):
    """The error has the record that is needed and those that are there, and nothing is copied."""
    copied(sqlite, on_kafka)
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    admin.delete_records({TopicPartition(kafka_url.rpartition("/")[2], 0): 3})
    admin.close()
    target = MemoryLog("social", PARTITIONS)
    with closing(open_log(kafka_url, "social")) as cut, pytest.raises(Corrupt) as problem:
        copied(cut, target)

    told = f"Record 0 of partition 0 is needed, but the topic {kafka_url.rpartition('/')[2]} begins at record 3 there"
    assert str(problem.value).startswith(told)
    assert target.end(0) == 0


@pytest.mark.parametrize("origin_partition", [0, 9])
def test_messages_from_records_that_are_gone_are_refused(origin_partition: int):
    """A log that lost the cause of a message would send another one of the same origin: it is not taken for whole."""
    source, target = MemoryLog("social", 2), MemoryLog("social", 2)
    message = Message("register", 1, "x", b"{}", Origin(5, 0, 0))
    payload = encode_messages([message], origin_partition)
    source.append([Entry(1, Kind.MESSAGES, 0, payload, (0, message.origin))])

    with pytest.raises(Corrupt, match="The copy is not whole: remove it, and copy again"):
        copied(source, target)


@pytest.mark.parametrize(
    "payload",
    [b"garbage", b'{"types":[],"which":[],"keys":[],"origin_partition":0,"offsets":[],"indices":[],"numbers":[]}'],
)
def test_messages_that_do_not_say_where_they_are_from_are_refused(payload: bytes):
    """Their origin could not be kept, so they are named and nothing is copied."""
    source, target = MemoryLog("social", 2), MemoryLog("social", 2)
    source.append([Entry(1, Kind.MESSAGES, 0, payload)])
    with pytest.raises(Corrupt, match=r"^Record 0 of partition 1 does not say where its messages are from\.$"):
        copied(source, target)

    assert target.end(1) == 0
