"""A handler that does not return, in a real Spark task."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from engram import Client

from tests.spark.gate import Wait, app

pytestmark = pytest.mark.spark


def test_a_stuck_handler_is_told_and_in_the_status_until_it_returns(start, tmp_path: Path):
    """`engram run` says which command it is, with its stack; so does the status. Then it goes on, and stops cleanly."""
    running = start("--shards", "1", "--partitions", "2", "--stuck-after", "1", app="tests.spark.gate:app")
    url, gate = running.ready(), tmp_path / "open"

    async def story() -> tuple[str, dict[str, object], dict[str, object], int]:
        async with Client(url, app) as client:
            position = await client.submit("ada", Wait(gate=str(gate)))
            told = await asyncio.to_thread(running.wait_for, "handler_stuck", 20)
            (shard,) = (await client.status())["shards"]
            gate.touch()
            await asyncio.to_thread(running.wait_for, "handler_returned", 20)
            reply = await client.send("ada", Wait(gate=str(gate)))
            return str(position), told, shard["partitions"][position.partition], reply

    position, told, stuck, reply = asyncio.run(story())

    assert (told["position"], told["command"], told["key"]) == (position, "wait", "ada")
    assert "while not Path(self.gate).exists():" in str(told["stack"])
    assert (stuck["state"], stuck["stuck"]["position"]) == ("stuck", position)  # type: ignore[index]
    assert reply == 2
    assert running.stop() == 0
