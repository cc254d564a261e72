"""A record that nobody can decode stops its partition: its queries say why, and all others are served."""

from __future__ import annotations

import asyncio

import pytest
from engram import Corrupt

from tests.serving.counter import Add, Value
from tests.serving.running import RunningApp

ADD = "/api/counters/counter/commands/add"
VALUE = "/api/counters/counter/queries/value"


def _spoil(running: RunningApp, partition: int) -> str:
    """Stops a partition; returns what its problem must name."""
    offset = running.spoil(partition)
    running.wait_until(lambda: bool(running.registry.problem(partition)))
    return f"Record {offset} of partition {partition} cannot be decoded"


def test_queries_to_a_stopped_partition_get_503_with_the_position(fragile: RunningApp):
    """The problem names the record that the partition is stopped at."""
    key = fragile.key_in(1)
    fragile.http.post(ADD, params={"key": key})
    expected = _spoil(fragile, 1)
    response = fragile.http.get(VALUE, params={"key": key})

    assert (response.status_code, response.json()["type"]) == (503, "urn:engram:stopped")
    assert expected in response.json()["detail"]


def test_commands_to_a_stopped_partition_say_that_they_are_logged_and_why_they_wait(fragile: RunningApp):
    """A command is durable all the same; its sender learns of the problem instead of a reply."""
    expected = _spoil(fragile, 1)
    response = fragile.http.post(ADD, params={"key": fragile.key_in(1), "timeout": "0.2"})

    assert response.status_code == 503
    assert expected in response.json()["detail"]
    assert "is logged at 1:" in response.json()["detail"]


def test_the_other_partitions_go_on(fragile: RunningApp):
    """Partitions of the same shard and of others are served as before."""
    _spoil(fragile, 1)
    replies = [fragile.http.post(ADD, params={"key": fragile.key_in(p)}).json()["reply"] for p in (0, 2, 3)]
    answers = [fragile.http.get(VALUE, params={"key": fragile.key_in(p)}).json()["answer"] for p in (0, 2, 3)]

    assert (replies, answers) == ([1, 1, 1], [1, 1, 1])


def test_a_successor_stops_at_the_same_record_and_says_so(fragile: RunningApp):
    """After a restart the partition is stopped where it was, the queries say why, and the others are served."""
    lost = fragile.shard_of(fragile.key_in(1))
    assert lost.partitions == [1, 3]
    lost.kill()
    offset = fragile.spoil(1)
    fragile.start_shard(lost.number, lost.partitions)
    fragile.wait_until(lambda: bool(fragile.registry.problem(1)))
    response = fragile.http.get(VALUE, params={"key": fragile.key_in(1)})

    assert (response.status_code, response.json()["type"]) == (503, "urn:engram:stopped")
    assert f"Record {offset} of partition 1" in response.json()["detail"]
    assert fragile.http.post(ADD, params={"key": fragile.key_in(3)}).json()["reply"] == 1


def test_health_and_status_show_the_stopped_partition(fragile: RunningApp):
    """Health is 503 with the partitions that are not served; the status has each one's state and problem."""
    assert fragile.http.get("/health").json() == {"status": "ok"}
    expected = _spoil(fragile, 1)
    health = fragile.http.get("/health")
    status = fragile.http.get("/api/counters").json()
    partitions = {p["partition"]: p for shard in status["shards"] for p in shard["partitions"]}

    assert (health.status_code, health.json()["partitions"]) == (503, [1])
    assert [partitions[p]["state"] for p in range(4)] == ["serving", "stopped", "serving", "serving"]
    assert expected in partitions[1]["problem"]


def test_the_client_raises_corrupt(fragile: RunningApp):
    """A stopped partition does not get better by trying again: the client raises at once."""
    expected = _spoil(fragile, 1)

    async def talk() -> int:
        async with fragile.client() as client:
            with pytest.raises(Corrupt, match=expected):
                await client.ask(fragile.key_in(1), Value())
            return await client.send(fragile.key_in(2), Add())

    assert asyncio.run(talk()) == 1
