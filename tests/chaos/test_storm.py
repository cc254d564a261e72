"""A short storm over three brokers; `make chaos` has the long one."""

from __future__ import annotations

import asyncio

import pytest
from engram.dev.kafka import Brokers

from tests.chaos.storm import TOPIC, LoadHadStopped, Storm, compare, kill_leader, kill_shard, pause_leader, running


@pytest.mark.spark
def test_a_short_storm_loses_doubles_and_reorders_nothing(kafka_cluster: Brokers, tmp_path, capsys):
    """A leader killed, a shard killed, a leader paused, under load: what was acknowledged is there once and in order.

    In the state, in the log, in a replay and in the events.
    """
    log = kafka_cluster.url(TOPIC) + "?replication=3&min_insync=2"
    with running(log, tmp_path, "--snapshot-every", "500", "--snapshot-pause", "0") as url:
        storm = Storm(kafka_cluster, log, url, writers=32, least_rate=20)
        asyncio.run(storm.run([kill_leader, kill_shard, pause_leader(6)], print))
        figures = asyncio.run(compare(storm))

    assert figures["digests_equal"]
    assert figures["events"] == figures["acknowledged"] > 100


def test_a_storm_without_load_does_not_count(monkeypatch):
    """When clients are not acknowledged often enough before a fault, the run says that it shows nothing."""
    monkeypatch.setattr("tests.chaos.storm._SETTLE_S", 0.1)
    storm = Storm(None, "", "", writers=1, least_rate=500)

    with pytest.raises(LoadHadStopped, match="only 0 commands/s before the fault, and 500 are wanted"):
        asyncio.run(storm._under_load([]))
