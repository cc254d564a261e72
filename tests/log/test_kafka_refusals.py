"""What can be wrong with a log on Kafka, and what is said then: each on a real broker, with its message."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from engram.codec.record import Kind
from engram.dev.kafka import Brokers
from engram.errors import Corrupt, Misuse, Unavailable
from engram.log.base import RECORD_BYTES, Entry, NoLog
from engram.log.kafka import clients, reader, topics
from engram.log.kafka.log import KafkaLog
from engram.log.kafka.settings import parse_kafka_url
from engram.log.open import open_log
from engram.log.scan import scan
from engram.model.effects import OutEvent
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaConnectionError

DEADLINE_S = 60.0
# For appends that are to fail: the others need not be in a hurry.
QUICK = "?request_timeout_ms=1500&delivery_timeout_ms=3000"
KEPT = {**topics._NEEDED, "max.message.bytes": str(clients.MESSAGE_BYTES)}

# Makes a log, appends its name, and says how many partitions the log has.
MAKER = """
import sys
from engram.codec.record import Kind
from engram.errors import EngramError
from engram.log.base import Entry
from engram.log.open import open_log

url, name, partitions = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
try:
    log = open_log(url, "app", partitions=int(partitions), create=True)
    log.append([Entry(0, Kind.COMMANDS, 0, name.encode())])
    print(log.partitions)
    log.close()
except EngramError as problem:
    print(problem)
"""


@pytest.fixture(scope="module")
def admin(kafka: Brokers) -> Iterator[KafkaAdminClient]:
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    yield admin
    admin.close()


@pytest.fixture
def topic() -> str:
    return f"refused-{uuid4().hex[:8]}"


@pytest.fixture
def url(kafka: Brokers, topic: str) -> str:
    """Where a log could be made."""
    return kafka.url(topic)


@pytest.fixture
def log(url: str) -> Iterator[KafkaLog]:
    """A new log."""
    log = KafkaLog(parse_kafka_url(url), "app", partitions=2, create=True)
    yield log
    log.close()


@pytest.fixture
def quick_log(url: str) -> Iterator[KafkaLog]:
    """A new log, whose appends do not wait long."""
    log = KafkaLog(parse_kafka_url(url + QUICK), "app", partitions=2, create=True)
    yield log
    log.close()


def refusal(url: str, app: str = "app", *, partitions: int | None = None, create: bool = False) -> str:
    with pytest.raises(Misuse) as refused:
        open_log(url, app, partitions=partitions, create=create)
    return str(refused.value)


def entry(payload: bytes, partition: int = 0) -> Entry:
    return Entry(partition, Kind.COMMANDS, 0, payload)


def event(offset: int) -> OutEvent:
    return OutEvent(0, offset, 0, 0, "event", 1, 0, "ada", b"{}")


def awake(watch: object) -> bool:
    return bool(select.select([watch], [], [], DEADLINE_S)[0])


def make_topic(admin: KafkaAdminClient, name: str, partitions: int = 2, **settings: str) -> None:
    configs = {**KEPT, **{setting.replace("_", "."): value for setting, value in settings.items()}}
    admin.create_topics({name: {"num_partitions": partitions, "replication_factor": 1, "configs": configs}})
    admin.wait_for_topics([name])


def delete_topic(admin: KafkaAdminClient, name: str) -> None:
    admin.delete_topics([name])
    deadline = time.monotonic() + DEADLINE_S
    while name in admin.list_topics():
        assert time.monotonic() < deadline, "the topic stays"


def alter(admin: KafkaAdminClient, topic: str, **settings: str) -> None:
    configs = {setting.replace("_", "."): value for setting, value in settings.items()}
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs)])


def write(brokers: Brokers, topic: str, *values: bytes) -> None:
    """As somebody else would."""
    producer = KafkaProducer(bootstrap_servers=brokers.bootstrap)
    for value in values:
        producer.send(topic, value, partition=0).get(timeout=DEADLINE_S)
    producer.close()


# No broker


@pytest.fixture(scope="module", autouse=True)
def hopeless(kafka_at_hand: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    """`engram run` with a log where nobody listens; it takes its time, and other tests go on meanwhile."""
    command = ["run", "sample_apps.social:app", "--port", "0", "--log", "kafka://127.0.0.1:9/social"]
    running = subprocess.Popen(
        [sys.executable, "-c", "from engram.cli.main import app; app()", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path_factory.mktemp("hopeless"),
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    yield running
    running.kill()
    running.communicate()


def test_no_broker_is_told(free_port: int, monkeypatch: pytest.MonkeyPatch):
    """The sentence names the address, and how to have a broker."""
    monkeypatch.setattr(clients, "_START_MS", (300,))
    with pytest.raises(Unavailable) as refused:
        open_log(f"kafka://127.0.0.1:{free_port}/social", "app", partitions=2, create=True)

    assert str(refused.value) == (
        f"No Kafka broker answers at 127.0.0.1:{free_port}: is it running, and is that its address? "
        "(`engram dev kafka` starts one for development.)"
    )


def test_a_log_that_cannot_be_opened_leaves_nothing_running(free_port: int, monkeypatch: pytest.MonkeyPatch):
    """Whoever tries again and again does not collect threads."""
    monkeypatch.setattr(clients, "_START_MS", (100, 100))
    before = set(threading.enumerate())
    with pytest.raises(Unavailable):
        open_log(f"kafka://127.0.0.1:{free_port}/social", "app")

    assert set(threading.enumerate()) <= before


def test_a_host_that_there_is_not_is_told(monkeypatch: pytest.MonkeyPatch):
    """A name that cannot be found is no broker either."""
    monkeypatch.setattr(clients, "_START_MS", (300,))
    with pytest.raises(Unavailable, match=r"^No Kafka broker answers at no-such-host\.invalid:9092: is it running"):
        open_log("kafka://no-such-host.invalid/social", "app")


def test_something_else_than_a_broker_is_told(taken_port: int, monkeypatch: pytest.MonkeyPatch):
    """What listens and says nothing is waited for only so long."""
    monkeypatch.setattr(clients, "_START_MS", (300,))
    with pytest.raises(Unavailable, match=rf"^No Kafka broker answers at 127\.0\.0\.1:{taken_port}: is it running"):
        open_log(f"kafka://127.0.0.1:{taken_port}/social", "app")


# Making and opening


def test_a_log_is_not_made_unless_asked(admin: KafkaAdminClient, url: str, topic: str):
    """Opening a log that is not there is refused, and makes no topic."""
    with pytest.raises(NoLog) as refused:
        open_log(url, "app", partitions=2)

    assert str(refused.value) == f"There is no log at {url}: check the name, or let `engram run` make it."
    assert [name for name in admin.list_topics() if name.startswith(topic)] == []


@pytest.mark.parametrize("partitions", [None, 0, 40_000])
def test_a_new_log_needs_a_sensible_number_of_partitions(url: str, partitions: int | None):
    """A log is made with 1 to 32,768 partitions; anything else is refused."""
    assert refusal(url, partitions=partitions, create=True) == (
        f"A new log needs a number of partitions from 1 to 32768, not {partitions}."
    )


def test_processes_that_make_a_log_at_once_make_one(url: str):
    """Two with the same number of partitions both succeed; one with another is refused, or all the others are."""
    wanted = [2, 2, 3]
    makers = [
        subprocess.Popen(
            [sys.executable, "-c", MAKER, url, f"maker-{i}", str(partitions)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for i, partitions in enumerate(wanted)
    ]
    for maker in makers:
        assert maker.stdout.readline() == "ready\n"
    for maker in makers:
        maker.stdin.write("\n")
        maker.stdin.flush()
    said = [maker.communicate(timeout=DEADLINE_S)[0].strip() for maker in makers]
    log = open_log(url, "app")
    held = log.partitions
    payloads = {record.payload.decode() for record in scan(log, 0)}
    log.close()

    assert held in wanted
    for i, partitions in enumerate(wanted):
        if partitions == held:
            assert said[i] == str(held)
        else:
            assert said[i].startswith(f"The log {url} has {held} partitions, not {partitions}. The number is fixed ")
    assert payloads == {f"maker-{i}" for i, partitions in enumerate(wanted) if partitions == held}


def test_a_log_that_was_half_made_is_finished(
    admin: KafkaAdminClient, url: str, topic: str, monkeypatch: pytest.MonkeyPatch
):
    """After a crash between the topics and the record that says what they are, the next start goes on."""
    for name in (topic, f"{topic}.events", f"{topic}.engram"):
        make_topic(admin, name, 1 if name.endswith(".engram") else 2)
    monkeypatch.setattr(topics, "_ABOUT_S", 0.2)
    with pytest.raises(NoLog):
        open_log(url, "app")
    log = open_log(url, "app", partitions=2, create=True)
    offsets = log.append([entry(b"first")])
    log.close()

    assert offsets == [0]


def test_a_topic_that_an_administrator_made_is_taken(admin: KafkaAdminClient, url: str, topic: str):
    """An empty topic with the right settings becomes the log's, with as many partitions as it has."""
    make_topic(admin, topic, 3)
    log = open_log(url, "app", create=True)
    log.close()

    assert log.partitions == 3


# Whose log it is


def test_the_log_of_another_app_is_refused(log: KafkaLog, url: str):
    """Both names are told."""
    said = f"The log {url} belongs to app 'app', not to 'shop': choose another log."

    assert refusal(url, "shop") == refusal(url, "shop", partitions=2, create=True) == said


def test_a_topic_of_somebody_else_is_refused(kafka: Brokers, admin: KafkaAdminClient, url: str, topic: str):
    """A topic with records that are not ours is not written to, and nothing is made beside it."""
    make_topic(admin, topic)
    write(kafka, topic, b"an order")

    assert refusal(url, partitions=2, create=True) == (
        f"The topic {topic} holds records that are not of an Engram log: choose another topic."
    )
    assert [name for name in admin.list_topics() if name.startswith(topic)] == [topic]


@pytest.mark.parametrize("about", [b"hello", b"{}", b'{"app":"app"}', b""])
def test_a_topic_that_does_not_say_what_it_is_is_refused(
    kafka: Brokers, admin: KafkaAdminClient, url: str, topic: str, about: bytes
):
    """The topic that should tell of the log holds something else."""
    for name in (topic, f"{topic}.events", f"{topic}.engram"):
        make_topic(admin, name)
    write(kafka, f"{topic}.engram", about)

    assert refusal(url) == f"The topic {topic}.engram is not of an Engram log: choose another topic."


def test_a_log_of_a_later_format_is_refused(kafka: Brokers, admin: KafkaAdminClient, url: str, topic: str):
    """Both formats are told, whatever else a later one says."""
    for name in (topic, f"{topic}.events", f"{topic}.engram"):
        make_topic(admin, name)
    write(kafka, f"{topic}.engram", json.dumps({"app": "app", "partitions": 2, "format": 99, "new": True}).encode())

    assert refusal(url) == f"The log {url} has format 99; this Engram reads format 2."


# Partitions and replicas


def test_another_number_of_partitions_is_refused(log: KafkaLog, url: str):
    """Both numbers are told, and that the number is for ever."""
    assert refusal(url, partitions=3) == (
        f"The log {url} has 2 partitions, not 3. The number is fixed when a log is made: use --partitions 2, or a new "
        "log."
    )


def test_a_topic_that_was_given_more_partitions_is_refused(
    admin: KafkaAdminClient, log: KafkaLog, url: str, topic: str
):
    """Keys would be looked for where they are not: the log is not opened again."""
    admin.create_partitions({topic: 5})
    admin.wait_for_topics([topic])

    assert refusal(url) == (
        f"The topic {topic} has 5 partitions, but the log was made with 2: keys would be looked for where they are "
        "not. Restore the topic, or copy the log to a new one (`engram log copy`)."
    )


def test_more_replicas_than_brokers_are_refused(kafka: Brokers, url: str):
    """Both numbers are told."""
    assert refusal(f"{url}?replication=3", partitions=2, create=True) == (
        f"replication=3 needs 3 brokers, and Kafka at {kafka.bootstrap} has 1: start more, or choose a smaller "
        "replication."
    )


def test_more_in_sync_than_there_can_be_is_refused(url: str):
    """No record could ever be appended."""
    assert refusal(f"{url}?min_insync=2", partitions=2, create=True) == (
        "min_insync=2 can never be met with replication=1: choose a smaller min_insync, or more brokers."
    )


def test_a_log_with_fewer_replicas_than_asked_for_is_refused(log: KafkaLog, url: str, topic: str):
    """Who asks for replicas is not left in the belief that there are some."""
    assert refusal(f"{url}?replication=3") == (
        f"The topic {topic} has 1 replicas of each partition, not 3: leave replication out of the URL, or have them "
        "changed (kafka-reassign-partitions.sh)."
    )


# Settings with which records are lost


@pytest.mark.parametrize(
    ("found", "needed"),
    [
        ("cleanup.policy=compact", "cleanup.policy=delete"),
        ("retention.ms=3600000", "retention.ms=-1"),
        ("retention.bytes=1000000", "retention.bytes=-1"),
        ("unclean.leader.election.enable=true", "unclean.leader.election.enable=false"),
        ("max.message.bytes=1048588", "max.message.bytes=9437184"),
        ("message.timestamp.type=LogAppendTime", "message.timestamp.type=CreateTime"),
    ],
)
def test_a_topic_that_loses_records_is_refused(admin: KafkaAdminClient, url: str, topic: str, found: str, needed: str):
    """The sentence says what to set, with the command; and nothing is made beside it."""
    setting, _, value = found.partition("=")
    make_topic(admin, topic, **{setting: value})

    assert refusal(url, partitions=2, create=True) == (
        f"The topic {topic} has {found}, with which records can be lost or refused. Set {needed} (kafka-configs.sh "
        f"--alter --entity-type topics --entity-name {topic} --add-config {needed}), and start again."
    )
    assert [name for name in admin.list_topics() if name.startswith(topic)] == [topic]


@pytest.mark.parametrize("suffix", ["", ".events", ".engram"])
def test_a_log_whose_settings_were_changed_is_refused(
    admin: KafkaAdminClient, log: KafkaLog, url: str, topic: str, suffix: str
):
    """All that is wrong is told at once, for each of the three topics."""
    alter(admin, topic + suffix, retention_ms="3600000", cleanup_policy="compact")
    found, needed = "cleanup.policy=compact, retention.ms=3600000", "cleanup.policy=delete,retention.ms=-1"

    assert refusal(url) == (
        f"The topic {topic}{suffix} has {found}, with which records can be lost or refused. Set {needed} "
        f"(kafka-configs.sh --alter --entity-type topics --entity-name {topic}{suffix} --add-config {needed}), and "
        "start again."
    )


# Large records


def test_a_record_larger_than_a_log_takes_is_refused(log: KafkaLog):
    """Both numbers are told, and nothing of its append is there."""
    size = RECORD_BYTES + 1024 * 1024
    with pytest.raises(Misuse) as refused:
        log.append([entry(b"small"), entry(b"x" * size), entry(b"other", 1)])

    assert str(refused.value) == (
        "A record of 9,437,184 bytes is larger than the log takes (9,433,088): nothing was appended."
    )
    assert (log.end(0), log.end(1)) == (0, 0)


def test_a_record_larger_than_the_topic_takes_now_is_refused(admin: KafkaAdminClient, log: KafkaLog, topic: str):
    """Somebody made the limit smaller while the log was in use: the broker refuses, and smaller records go on."""
    alter(admin, topic, max_message_bytes="1000")
    with pytest.raises(Misuse) as refused:
        log.append([entry(b"x" * 5000)])
    with pytest.raises(Unavailable) as unknown:
        log.append([entry(b"x" * 5000), entry(b"small", 1)])
    offsets = log.append([entry(b"small")])

    said = f"The record is larger than {topic} allows now (max.message.bytes): make it smaller, or that larger."
    assert str(refused.value) == said
    assert str(unknown.value) == f"{said} Whether the records were appended is not known."
    assert offsets == [0]


# Records that are gone


def test_records_deleted_from_the_head_are_told(admin: KafkaAdminClient, log: KafkaLog, topic: str):
    """A reader that needs them is told both numbers, each time; what is there can be read."""
    log.append([entry(b"%d" % number) for number in range(5)])
    admin.delete_records({TopicPartition(topic, 0): 3})
    said = []
    for offset in (0, 2, 0):
        with pytest.raises(Corrupt) as refused:
            log.read(0, offset, limit=10)
        said.append(str(refused.value))

    told = (
        f"of partition 0 is needed, but the topic {topic} begins at record 3 there: what was before it was trimmed, "
        "or was never in this log. Name its archive in the URL (?archive=FOLDER), bring the missing records back, or "
        "start from a snapshot that covers them."
    )
    assert said == [f"Record {offset} {told}" for offset in (0, 2, 0)]
    assert [record.payload for record in scan(log, 0, 3)] == [b"3", b"4"]


def test_a_deleted_topic_is_told(
    admin: KafkaAdminClient, kafka: Brokers, quick_log: KafkaLog, url: str, monkeypatch: pytest.MonkeyPatch
):
    """Who follows it is woken and told; an append fails with its name; and it is not made anew beside what is left."""
    monkeypatch.setattr(reader, "_SILENCE_S", 0.3)
    log, topic = quick_log, quick_log._settings.topic
    watch = log.watch()
    log.append([entry(b"one")], [event(0)])
    assert read_until(log, 1) == [b"one"]
    watch.clear()
    delete_topic(admin, topic)
    woken = awake(watch)
    with pytest.raises(Corrupt) as reading:
        log.read(0, 1, limit=10)
    with pytest.raises(Unavailable) as appending:
        log.append([entry(b"two")])
    watch.close()

    assert woken
    assert str(reading.value) == f"The topic {topic} is not in Kafka at {kafka.bootstrap} any more: was it deleted?"
    assert f"could not append to {topic}: " in str(appending.value)
    assert str(appending.value).endswith(" Whether the record was appended is not known.")
    assert refusal(url, partitions=2, create=True) == (
        f"The log {url} has lost its topic {topic}: bring it back, or delete {topic}.engram and {topic}.events for a "
        "new log."
    )


def read_until(log: KafkaLog, count: int) -> list[bytes]:
    """The first records of partition 0, by a reader that follows."""
    payloads: list[bytes] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(payloads) < count:
        assert time.monotonic() < deadline, "the records do not come"
        payloads += [record.payload for record in log.read(0, len(payloads), limit=10)]
    return payloads


@pytest.mark.parametrize("written", [1, 5])
def test_a_topic_that_was_made_anew_is_told(
    admin: KafkaAdminClient, kafka: Brokers, log: KafkaLog, topic: str, written: int
):
    """Shorter or longer than before: who follows it stops, and never goes on with other records at the same offsets."""
    watch = log.watch()
    log.append([entry(b"%d" % number) for number in range(3)])
    assert read_until(log, 3) == [b"0", b"1", b"2"]
    watch.clear()
    delete_topic(admin, topic)
    make_topic(admin, topic)
    write(kafka, topic, *[b"other"] * written)
    said = told(log, 3)
    write(kafka, topic, *[b"other"] * 5)
    again = told(log, 3)
    watch.close()

    shorter = (
        f"Record 3 of partition 0 is needed, but the topic {topic} holds 0 to {written - 1} there: it was cut, or made "
        "anew. Bring the missing records back, or start from a snapshot that covers them."
    )
    anew = (
        f"The topic {topic} was deleted and made anew while it was read: its records are not those that were handled. "
        "Restore it, or choose another log."
    )
    assert said == again
    assert said in (shorter, anew)


def told(log: KafkaLog, offset: int) -> str:
    """What a reader is told, who must not be given a record."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            assert log.read(0, offset, limit=10) == []
        except Corrupt as problem:
            return str(problem)
    raise AssertionError("the reader is not told")


# A broker that is lost


@pytest.fixture(scope="module")
def one_broker(kafka_at_hand: None) -> Iterator[Brokers]:
    # A broker that was killed comes back only when it was missed: after 9 s, if nothing is set.
    quick = {"broker.session.timeout.ms": "1000", "broker.heartbeat.interval.ms": "200"}
    with Brokers(settings=quick) as brokers:
        yield brokers


@pytest.fixture
def lossy(one_broker: Brokers) -> Brokers:
    """One broker that a test may kill, and leave so."""
    if 0 not in one_broker.pids:
        one_broker.start(0)
        one_broker.wait_ready(DEADLINE_S)
    return one_broker


def test_a_lost_broker_is_waited_for(lossy: Brokers, monkeypatch: pytest.MonkeyPatch):
    """Meanwhile appends fail and say so; when it is back the same log goes on: nothing lost or doubled, in order."""
    log = KafkaLog(parse_kafka_url(lossy.url("social") + QUICK), "app", partitions=2, create=True)
    watch = log.watch()
    before = log.append([entry(b"a"), entry(b"b")], [event(0)])
    assert read_until(log, 2) == [b"a", b"b"]
    lossy.kill(0)
    refusals = []
    for entries, events in (([entry(b"lost")], []), ([entry(b"lost")], []), ([], [event(1)])):
        with monkeypatch.context() as impatient:
            impatient.setattr(clients, "_START_MS", (500,))
            with pytest.raises(Unavailable) as refused:
                log.append(entries, events)
        refusals.append(str(refused.value))
    at_the_end = log.read(0, 2, limit=10)
    lossy.start(0)
    lossy.wait_ready(DEADLINE_S)
    watch.clear()
    after = [appended(log, entry(b"c"), event(1)), appended(log, entry(b"d"), event(2))]
    woken = awake(watch)
    payloads = read_until(log, 4)
    events = [each.offset for each in log.events(0, after=(-1, -1, -1), limit=10)]
    watch.close()
    log.close()

    assert refusals[0].startswith(f"Kafka at {lossy.bootstrap} could not append to social: KafkaTimeoutError: ")
    assert refusals[0].endswith(" Whether the record was appended is not known.")
    assert refusals[1].startswith(f"No Kafka broker answers at {lossy.bootstrap}: is it running")
    assert refusals[2].startswith(f"Kafka at {lossy.bootstrap} could not let out events to social.events: ")
    assert at_the_end == []
    assert [*before, *after] == [0, 1, 2, 3]
    assert (woken, payloads, events) == (True, [b"a", b"b", b"c", b"d"], [0, 1, 2])


def appended(log: KafkaLog, record: Entry, event: OutEvent) -> int:
    """The offset of a record whose append was tried until it succeeded. Only an event's may fail once it is there."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            (offset,) = log.append([record])
            break
        except Unavailable:
            assert time.monotonic() < deadline, "the broker is not found again"
    while True:
        try:
            log.append([], [event])
        except Unavailable:
            assert time.monotonic() < deadline, "the events do not go out again"
        else:
            return offset


def test_an_error_while_following_loses_nothing(log: KafkaLog, monkeypatch: pytest.MonkeyPatch):
    """Records that Kafka's client had already given out when it failed are fetched again, in their places."""
    watch = log.watch()
    poll = log._tail._consumer.poll
    failures = []

    def fail_once(**how: object) -> object:
        fetched = poll(**how)
        if fetched and not failures:
            failures.append(fetched)
            raise KafkaConnectionError("lost")
        return fetched

    monkeypatch.setattr(log._tail._consumer, "poll", fail_once)
    other = KafkaLog(log._settings, "app")
    other.append([entry(b"a"), entry(b"b"), entry(b"c")])
    other.close()
    woken = awake(watch)
    payloads = read_until(log, 3)
    watch.close()

    assert (len(failures), woken) == (1, True)
    assert payloads == [b"a", b"b", b"c"]


def test_a_log_can_be_closed_without_its_broker(lossy: Brokers, monkeypatch: pytest.MonkeyPatch):
    """Whoever stops does not wait for a broker that is gone, even while it looks for its topic."""
    monkeypatch.setattr(reader, "_SILENCE_S", 0.1)
    log = KafkaLog(parse_kafka_url(lossy.url("closed") + QUICK), "app", partitions=2, create=True)
    watch = log.watch()
    log.append([entry(b"a")], [event(0)])
    lossy.kill(0)
    with pytest.raises(Unavailable):
        log.append([entry(b"lost")])
    watch.close()
    started = time.monotonic()
    log.close()

    assert time.monotonic() - started < 10


# At the end: it takes about ten seconds, and has had them.


def test_a_run_without_a_broker_ends_with_one_sentence(hopeless: subprocess.Popen[str]):
    """`engram run` says what is wrong on stderr, nothing else, and ends with the exit code for "try again"."""
    stdout, stderr = hopeless.communicate(timeout=DEADLINE_S)

    assert (hopeless.returncode, stdout) == (3, "")
    assert stderr == (
        "engram: No Kafka broker answers at 127.0.0.1:9: is it running, and is that its address? "
        "(`engram dev kafka` starts one for development.)\n"
    )
