"""Real brokers: up, used, hurt, and gone."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from engram.dev.kafka import Brokers, _hold_ports
from engram.dev.metadata import ask_cluster
from engram.errors import Misuse, Unavailable
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic

from tests.dev.left import eventually, running

# Starts a broker, says what belongs to it, and waits to be killed.
HOLDER = """
import json, psutil, signal
from engram.dev.kafka import Brokers
brokers = Brokers()
pid = brokers.pids[0]
told = {"pids": [pid, psutil.Process(pid).ppid()], "folder": psutil.Process(pid).cwd()}
print(json.dumps(told), flush=True)
signal.pause()
"""


def make_topic(brokers: Brokers, name: str, *, copies: int = 1) -> None:
    admin = KafkaAdminClient(bootstrap_servers=brokers.bootstrap.split(","))
    admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=copies)])
    admin.close()


def append(brokers: Brokers, topic: str, *values: bytes) -> None:
    """All of them, acknowledged."""
    producer = KafkaProducer(bootstrap_servers=brokers.bootstrap.split(","), acks="all")
    for sent in [producer.send(topic, value) for value in values]:
        sent.get(timeout=30)
    producer.close()


def read(brokers: Brokers, topic: str, count: int) -> list[bytes]:
    """The first records of the topic's one partition."""
    consumer = KafkaConsumer(
        bootstrap_servers=brokers.bootstrap.split(","), auto_offset_reset="earliest", consumer_timeout_ms=30_000
    )
    consumer.assign([TopicPartition(topic, 0)])
    values = [record.value for _, record in zip(range(count), consumer, strict=False)]
    consumer.close()
    return values


def listening(pid: int) -> list[tuple[str, int]]:
    """The addresses that a process accepts connections on."""
    connections = psutil.Process(pid).net_connections(kind="inet")
    return [(c.laddr.ip, c.laddr.port) for c in connections if c.status == psutil.CONN_LISTEN]


class _Named:
    """A socket that can be asked for its address, and whose end changes nothing."""

    def __init__(self, held: socket.socket) -> None:
        self.getsockname = held.getsockname

    def close(self) -> None:
        """Leaves it to its owner."""


def test_a_broker_takes_records_and_gives_them_back(kafka: Brokers):
    """A client that knows the bootstrap address can produce and consume."""
    make_topic(kafka, "given-back")
    append(kafka, "given-back", b"one", b"two", b"three")

    assert read(kafka, "given-back", 3) == [b"one", b"two", b"three"]


def test_a_url_names_all_brokers_and_the_topic(kafka_cluster: Brokers):
    """What `engram run --log` takes holds the three addresses."""
    addresses = kafka_cluster.bootstrap.split(",")

    assert len(set(addresses)) == len(kafka_cluster) == 3
    assert kafka_cluster.url("social") == f"kafka://{','.join(addresses)}/social"


def test_no_topic_is_made_by_asking_for_it(kafka: Brokers):
    """A misspelt topic stays unknown."""
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    admin.describe_topics(["misspelt"])
    topics = admin.list_topics()
    admin.close()

    assert "misspelt" not in topics


def test_brokers_listen_on_loopback_only(kafka_cluster: Brokers):
    """Every listening socket of every broker, the controllers' included, is on 127.0.0.1."""
    sockets = {i: listening(pid) for i, pid in kafka_cluster.pids.items()}

    assert [len(found) for found in sockets.values()] == [3, 3, 3]  # for clients, brokers, controllers
    assert {address for found in sockets.values() for address, _ in found} == {"127.0.0.1"}


def test_a_killed_leader_is_replaced_and_comes_back_with_its_data(kafka_cluster: Brokers):
    """What was acknowledged is there while the leader is away; started again, it is on its old port and in sync."""
    make_topic(kafka_cluster, "led", copies=3)
    kafka_cluster.wait_in_sync(60)
    append(kafka_cluster, "led", b"before")
    old = kafka_cluster.leader("led", 0)
    before = kafka_cluster.pids
    kafka_cluster.kill(old)
    gone = not psutil.pid_exists(before[old])
    left = kafka_cluster.pids
    replaced = eventually(lambda: kafka_cluster.leader("led", 0) != old, 60)
    append(kafka_cluster, "led", b"between")
    kafka_cluster.start(old)
    kafka_cluster.wait_in_sync(60)
    port = int(kafka_cluster.bootstrap.split(",")[old].partition(":")[2])

    assert gone
    assert left == {i: pid for i, pid in before.items() if i != old}
    assert replaced
    assert ("127.0.0.1", port) in listening(kafka_cluster.pids[old])
    assert ask_cluster(port, 10.0).partitions["led", 0].in_sync == {0, 1, 2}
    assert read(kafka_cluster, "led", 2) == [b"before", b"between"]


def test_a_paused_broker_answers_nothing_until_it_is_resumed(kafka_cluster: Brokers):
    """Its port still takes connections, and the others go on; afterwards it answers again."""
    kafka_cluster.wait_in_sync(60)
    port = int(kafka_cluster.bootstrap.split(",")[1].partition(":")[2])
    kafka_cluster.pause(1)
    status = psutil.Process(kafka_cluster.pids[1]).status()
    with pytest.raises(TimeoutError):
        ask_cluster(port, 0.5)
    kafka_cluster.wait_ready(30)
    kafka_cluster.resume(1)
    kafka_cluster.wait_in_sync(60)

    assert status == psutil.STATUS_STOPPED
    assert ask_cluster(port, 10.0).brokers == {0, 1, 2}


def test_a_paused_broker_can_be_killed(kafka_cluster: Brokers):
    """SIGKILL ends a stopped process too, and it can be started again."""
    kafka_cluster.pause(2)
    pid = kafka_cluster.pids[2]
    kafka_cluster.kill(2)
    gone = not psutil.pid_exists(pid)
    kafka_cluster.start(2)
    kafka_cluster.wait_in_sync(60)

    assert gone
    assert kafka_cluster.pids[2] != pid


def test_a_broker_that_was_killed_from_outside_can_be_started_again(kafka_cluster: Brokers):
    """Whoever kills by process id needs no word to us before."""
    pid = kafka_cluster.pids[0]
    os.kill(pid, signal.SIGKILL)
    gone = eventually(lambda: not psutil.pid_exists(pid))
    kafka_cluster.start(0)
    kafka_cluster.wait_in_sync(60)

    assert gone
    assert kafka_cluster.pids[0] != pid


def test_what_makes_no_sense_is_refused(kafka: Brokers):
    """A broker that runs is not started, one that is not there is not killed, and a topic must exist to be led."""
    with pytest.raises(Misuse, match="Broker 0 runs already"):
        kafka.start(0)
    with pytest.raises(Misuse, match="Broker 5 of 1 does not run"):
        kafka.kill(5)
    with pytest.raises(Misuse, match="no partition 0 of a topic 'unheard-of'"):
        kafka.leader("unheard-of", 0)
    with pytest.raises(Misuse, match="0 brokers"):
        Brokers(0)


def test_ports_are_held_for_as_long_as_their_brokers(kafka: Brokers, monkeypatch: pytest.MonkeyPatch):
    """Nobody who looks for a port gets one of theirs: neither before they listen nor while they are killed."""
    held = [held.getsockname()[1] for held in kafka._held]
    monkeypatch.setattr("engram.dev.kafka._PORTS", held)

    assert len(held) == 3
    with pytest.raises(Unavailable, match=r"No 1 ports of 127\.0\.0\.1"):
        _hold_ports(1)


@pytest.mark.usefixtures("kafka_at_hand")
def test_a_broker_that_ends_is_told_though_another_answers_on_its_port(kafka: Brokers, monkeypatch: pytest.MonkeyPatch):
    """A stranger's broker on its ports is not taken for it."""
    monkeypatch.setattr("engram.dev.kafka._hold_ports", lambda _count: [_Named(held) for held in kafka._held])

    with pytest.raises(Misuse, match="Address already in use"):
        Brokers()


@pytest.mark.usefixtures("kafka_at_hand")
def test_stopped_brokers_leave_nothing():
    """Processes, keeper, folder and ports are gone when `stop` returns; a second `stop` does nothing."""
    with Brokers() as brokers:
        (pid,) = brokers.pids.values()
        keeper = psutil.Process(pid).ppid()
        folder = Path(psutil.Process(pid).cwd())
        there = [*folder.glob("data-0/meta.properties")]
    brokers.stop()

    assert len(there) == 1
    assert not psutil.pid_exists(pid)
    assert not psutil.pid_exists(keeper)
    assert not folder.exists()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(brokers.bootstrap.partition(":")[2])))
    with pytest.raises(Unavailable, match="No broker answers"):
        brokers.leader("any", 0)


@pytest.mark.usefixtures("kafka_at_hand")
def test_a_killed_process_takes_its_brokers_along():
    """SIGKILL of the process that started them leaves no Java, no keeper and no folder."""
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    told = json.loads(holder.stdout.readline())
    before = running(told["pids"])
    holder.kill()
    holder.wait()
    holder.stdout.close()

    assert before == told["pids"]
    assert eventually(lambda: not running(told["pids"]) and not Path(told["folder"]).exists())


@pytest.mark.usefixtures("kafka_at_hand")
@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("num.io.threads", "many", "Invalid value many for configuration num.io.threads"),
        ("metric.reporters", "no.such.Reporter", "no.such.Reporter"),
    ],
)
def test_a_setting_that_kafka_refuses_is_told_in_its_own_words(setting: str, value: str, words: str):
    """The error has the reason that is otherwise only in the log, and nothing is left behind."""
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    with pytest.raises(Misuse) as refused:
        Brokers(settings={setting: value})

    assert words in str(refused.value).splitlines()[0]
    assert {process.pid for process in psutil.Process().children(recursive=True)} <= before
