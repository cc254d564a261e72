"""Sinks beside an app on Spark: every event arrives, over a restart, and one that takes nothing is no trouble."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from engram import Client

from sample_apps.social import app
from sample_apps.social.commands import Publish, Register
from tests.sinks.receiver import Answer, Receiver
from tests.spark.running import eventually

pytestmark = pytest.mark.spark


async def publish(url: str, *texts: str) -> dict[str, object]:
    """Publishes, and returns what the app says of its sinks, by their names."""
    async with Client(url, app) as client:
        for text in texts:
            await client.send("ada", Publish(text=text))
        return {sink["name"]: sink for sink in (await client.status())["sinks"]}


def delivered(table: Path, receiver: Receiver) -> tuple[list[str], list[str]]:
    """The ids of the events in the table and at the receiver."""
    with closing(sqlite3.connect(table)) as db:
        try:
            rows = db.execute("select id from events order by partition, offset").fetchall()
        except sqlite3.OperationalError:  # the table is not there yet
            rows = []
    return [row[0] for row in rows], [event["id"] for event in receiver.taken]


def test_sinks_have_every_event_once_over_a_restart(start, tmp_path, monkeypatch, free_port):
    """A table and a webhook that fails at first get the same; the status tells of the one that is not there."""
    monkeypatch.setenv("ENGRAM_WEBHOOK_SECRET", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    table, nobody = tmp_path / "events.db", f"http://127.0.0.1:{free_port}/hook"
    with Receiver() as receiver:
        receiver.script += [Answer(503)] * 2
        sinks = [f"sqlite:{table}", receiver.url(), nobody]
        options = ["--sink-allow-private", *(word for sink in sinks for word in ("--sink", sink))]
        arguments = ["--shards", "1", "--partitions", "2", *options]
        first = start(*arguments, app="sample_apps.social:app")
        url = first.ready()

        async def register() -> None:
            async with Client(url, app) as client:
                await client.send("ada", Register(name="Ada"))

        asyncio.run(register())
        asyncio.run(publish(url, "one", "two"))
        assert eventually(lambda: [len(ids) for ids in delivered(table, receiver)] == [2, 2], 30)
        status = asyncio.run(publish(url))
        assert first.stop() == 0
        second = start(*arguments, app="sample_apps.social:app")
        asyncio.run(publish(second.ready(), "three"))
        assert eventually(lambda: [len(ids) for ids in delivered(table, receiver)] == [3, 3], 30)
        assert second.stop() == 0
        in_table, at_receiver = delivered(table, receiver)

    assert in_table == at_receiver
    assert [status[name]["delivered"] for name in (f"sqlite:{table}?table=events", receiver.url(), nobody)] == [2, 2, 0]
    assert "does not answer" in status[nobody]["problem"]
