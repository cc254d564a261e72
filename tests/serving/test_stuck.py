"""A shard that is stuck in a handler: the status says so, whoever waits for it learns why, and the rest goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from engram.log.memory import MemoryLog
from engram.serving.transport import ZmqTransport
from engram.shard.policy import Policy
from engram.shard.requests import PartitionStatus, ShardStatus, Stop
from engram.snapshots.files import FileSnapshots

from tests.serving.running import SECONDS, RunningApp
from tests.shard.gates import GATES, app

WAIT = "/api/gates/walker/commands/wait"
PASSED = "/api/gates/walker/queries/passed"


@pytest.fixture
def gates(tmp_path: Path) -> Iterator[RunningApp]:
    """Two shards of two partitions each, with short patience. What ends them is the registry's word, as always."""
    GATES.clear()
    with RunningApp(app, tmp_path, policy=Policy(stuck_after=0.2)) as running:
        try:
            yield running
        finally:
            for gate in GATES.values():
                gate.set()
            running.wait_until(lambda: not any(running.registry.stuck(p) for p in range(4)))


def get_stuck(running: RunningApp, key: str) -> str:
    """Sends a command that does not return, and waits until that is known; its position."""
    position = running.http.post(WAIT, params={"key": key, "wait": "log"}, json={"gate": key}).json()["position"]
    running.wait_until(lambda: bool(running.registry.stuck(running.partition_of(key))))
    return str(position)


def partitions(running: RunningApp) -> dict[int, dict[str, Any]]:
    status = running.http.get("/api/gates").json()
    return {p["partition"]: p for shard in status["shards"] for p in shard["partitions"]}


def test_the_status_shows_the_stuck_partition_with_its_stack(gates: RunningApp):
    """The watchdog tells in place of the shard, which cannot; the others are as they were."""
    key = gates.key_in(1)
    position = get_stuck(gates, key)
    found = partitions(gates)
    stuck = found[1]["stuck"]

    assert [found[p]["state"] for p in range(4)] == ["serving", "stuck", "serving", "serving"]
    assert (stuck["position"], stuck["command"], stuck["key"]) == (position, "wait", key)
    assert "GATES[self.gate].wait()" in stuck["stack"]
    assert found[1]["problem"].startswith(f"The handling of wait for {key!r} at {position} has not ended for ")
    assert found[1]["problem"].endswith("All of shard 1 waits for it, partition 3 too.")


def test_health_counts_the_partitions_of_a_stuck_shard_out(gates: RunningApp):
    """They are not served while it waits, and are again afterwards."""
    key = gates.key_in(1)
    get_stuck(gates, key)
    health = gates.http.get("/health")
    GATES[key].set()
    gates.wait_until(lambda: not gates.registry.stuck(1))

    assert (health.status_code, health.json()["partitions"]) == (503, [1, 3])
    assert gates.http.get("/health").status_code == 200


def test_after_it_has_returned_the_status_is_as_before(gates: RunningApp):
    """What waited behind it is answered, and nothing is left of it in the status."""
    key = gates.key_in(1)
    get_stuck(gates, key)
    GATES[key].set()
    gates.wait_until(lambda: not gates.registry.stuck(1))
    answer = gates.http.get(PASSED, params={"key": key})

    assert answer.json()["answer"] == 1
    assert {(p["state"], p["stuck"], p["problem"]) for p in partitions(gates).values()} == {("serving", None, "")}


def test_whoever_waits_for_a_stuck_shard_learns_why(gates: RunningApp):
    """Queries and commands for any of its partitions get 503 with the reason; other shards answer as always."""
    key = gates.key_in(1)
    position = get_stuck(gates, key)
    why = f"The handling of wait for {key!r} at {position} has not ended"
    asked = gates.http.get(PASSED, params={"key": gates.key_in(3), "timeout": "0"})
    sent = gates.http.post("/api/gates/walker/commands/pass", params={"key": key, "timeout": "0"})
    other = gates.http.post("/api/gates/walker/commands/pass", params={"key": gates.key_in(2)})

    assert (asked.status_code, sent.status_code) == (503, 503)
    assert why in asked.json()["detail"]
    assert "is logged at 1:" in sent.json()["detail"]
    assert why in sent.json()["detail"]
    assert other.json()["reply"] == 1


def test_the_quarantine_tells_of_stuck_partitions_at_once(gates: RunningApp):
    """Whoever is woken at night is not kept waiting."""
    get_stuck(gates, gates.key_in(1))
    started = time.monotonic()
    found = gates.http.get("/api/gates/quarantine").json()
    shown = gates.http.get("/api/gates/quarantine/3:1.0")

    assert [missing["partition"] for missing in found["not_served"]] == [1, 3]
    assert all("has not ended" in missing["problem"] for missing in found["not_served"])
    assert shown.status_code == 503
    assert time.monotonic() - started < 5


def test_a_stuck_shard_that_is_told_to_stop_does_so_once_it_can(gates: RunningApp):
    """The word goes to the shard itself, not to the watchdog that spoke for it; it ends with a last snapshot."""
    key = gates.key_in(1)
    get_stuck(gates, key)
    gates.on_loop(gates.registry.stop_shards(clean=True))
    GATES[key].set()
    for shard in gates.shards:
        shard.join()

    assert FileSnapshots(gates.folder / "snapshots", app.name).newest(1) is not None


def test_a_shard_that_comes_after_the_stop_is_told_too(gates: RunningApp):
    """Spark starts one in the place of another at any time; before, nobody told it, and a stop took a minute."""
    gates.on_loop(gates.registry.stop_shards(clean=True))
    late = gates.shards[0]
    for shard in gates.shards:
        shard.join()
    gates.start_shard(late.number, late.partitions).join()


def test_listeners_hear_of_it_once_and_of_its_end(gates: RunningApp):
    """However often the watchdog announces it."""
    heard: list[PartitionStatus] = []
    gates.registry.on_stuck(heard.append)
    key = gates.key_in(2)
    get_stuck(gates, key)
    first = gates.registry.shards()[0].partitions[1].stuck
    assert first is not None
    gates.wait_until(lambda: (now := gates.registry.shards()[0].partitions[1].stuck) is not None and now != first)
    GATES[key].set()
    gates.wait_until(lambda: len(heard) > 1)

    assert [(p.partition, p.state, p.stuck is None) for p in heard] == [(2, "stuck", False), (2, "serving", True)]


def test_the_registry_knows_how_long_a_shard_is_silent(gates: RunningApp):
    """A live shard speaks twice a second; one that is gone, or holds its whole process up, does not."""
    gates.shards[1].kill()
    deadline = time.monotonic() + SECONDS

    def silences() -> list[float]:
        return [shard["silent_s"] for shard in gates.http.get("/api/gates").json()["shards"]]

    while silences()[1] < 1.5:
        assert time.monotonic() < deadline
        threading.Event().wait(0.05)
    assert silences()[0] < silences()[1]
    gates.start_shard(1, [1, 3])
    gates.wait_until(lambda: gates.registry.shards()[1].silent_s < 1)


# The registry's silence


@pytest.fixture
def line() -> Iterator[tuple[ZmqTransport, zmq.Socket[bytes]]]:
    """A shard's line, and the other end of it, which answers when a test does."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as registry:
        port = registry.bind_to_random_port("tcp://127.0.0.1")
        transport = ZmqTransport(f"tcp://127.0.0.1:{port}")
        yield transport, registry
        transport.close()


def long_ago(transport: ZmqTransport, *, heard: float, polled: float) -> None:
    transport._heard -= heard
    transport._polled -= polled


def stops(transport: ZmqTransport) -> list[Stop]:
    watch = MemoryLog("x", 1).watch()
    found = [incoming.request for incoming in transport.poll(watch, 0)]
    watch.close()
    return [request for request in found if isinstance(request, Stop)]


def test_a_registry_that_says_nothing_is_gone(line: tuple[ZmqTransport, zmq.Socket[bytes]]):
    """A shard that listened all the time without a word ends, unclean."""
    transport, _ = line
    long_ago(transport, heard=21, polled=0)

    assert stops(transport) == [Stop(clean=False)]


def test_the_time_in_a_handler_is_not_the_registrys_silence(line: tuple[ZmqTransport, zmq.Socket[bytes]]):
    """A shard that was away for a minute asked nothing, so nothing could be answered; from then on it counts again."""
    transport, _ = line
    long_ago(transport, heard=60, polled=60)
    after_return = stops(transport)
    long_ago(transport, heard=21, polled=0)

    assert (after_return, stops(transport)) == ([], [Stop(clean=False)])


def test_an_answer_that_waited_is_heard_first(line: tuple[ZmqTransport, zmq.Socket[bytes]]):
    """Whatever the clock says, a registry that has answered is there."""
    transport, registry = line
    transport.announce(ShardStatus(shard=0, owner="o", pid=1, address="a", partitions=[]))
    identity, *_ = registry.recv_multipart()
    registry.send_multipart([identity, b"ok"])
    assert transport._registry.poll(5000)
    long_ago(transport, heard=60, polled=0)

    assert stops(transport) == []
