"""Shards as Spark tasks, killed with SIGKILL."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from contextlib import closing
from typing import Any

import pytest
from engram import Client
from engram.log.open import open_log
from engram.testing.history import Recorder, RecordingClient, check, commands_in

from tests.spark.ledger import Add, Entries, app
from tests.testing.recorded import Ledgers

pytestmark = pytest.mark.spark

WRITERS = 16
KILLS = 10


async def write(client: Client, key: str, acknowledged: list[int], stop: asyncio.Event) -> None:
    """Adds one number after the other, each once the one before is acknowledged."""
    number = 0
    while not stop.is_set():
        count = await client.send(key, Add(number=number))
        acknowledged.append(number)
        number += 1
        assert count == number


async def owners(client: Client) -> dict[int, dict[str, Any]]:
    return {shard["shard"]: shard for shard in (await client.status())["shards"]}


async def kill_one(client: Client, shard: int) -> None:
    """Kills the shard's process and waits until another one serves all its partitions."""
    victim = (await owners(client))[shard]
    os.kill(victim["pid"], signal.SIGKILL)
    async with asyncio.timeout(60):
        while True:
            now = (await owners(client))[shard]
            if now["pid"] != victim["pid"] and all(p["state"] == "serving" for p in now["partitions"]):
                return
            await asyncio.sleep(0.05)


async def story(url: str, recorder: Recorder) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Writes under load while shards are killed; what was acknowledged, and what is there at the end."""
    acknowledged: dict[str, list[int]] = {f"key{n}": [] for n in range(WRITERS)}
    stop = asyncio.Event()
    dice = random.Random(5)
    async with RecordingClient(url, app, recorder, patience=120) as client:
        writing = [asyncio.create_task(write(client, key, numbers, stop)) for key, numbers in acknowledged.items()]
        for _ in range(KILLS):
            before = sum(map(len, acknowledged.values()))
            await kill_one(client, dice.randrange(2))
            async with asyncio.timeout(30):  # the load goes on after every kill
                while sum(map(len, acknowledged.values())) < before + WRITERS:
                    await client.status()
        stop.set()
        await asyncio.gather(*writing)
        there = {key: await client.ask(key, Entries()) for key in acknowledged}
    return acknowledged, there


def test_ten_kills_of_shards_under_load_lose_and_double_nothing(start):
    """After ten SIGKILLs every acknowledged command has taken effect once, in order, and clients were told so."""
    recorder = Recorder("story")
    running = start("--shards", "2", "--partitions", "8", "--snapshot-every", "200", "--snapshot-pause", "0")
    acknowledged, there = asyncio.run(story(running.ready(), recorder))
    with closing(open_log(running.log, app.name)) as log:
        verdict = check(recorder.operations, app, logged=commands_in(log, app), model=Ledgers)

    assert there == acknowledged
    assert all(there.values())
    verdict.raise_if_wrong()
    assert verdict.acknowledged == sum(map(len, acknowledged.values()))


def test_a_job_that_used_up_its_retries_is_started_again(start):
    """With no retries by Spark, a killed shard ends the job, and the supervisor starts it anew."""
    running = start("--shards", "2", "--partitions", "2", "--master", "local[2,1]")
    url = running.ready()

    async def kill_and_go_on() -> int:
        async with Client(url, app, patience=60) as client:
            await client.send("a", Add(number=1))
            victim = (await owners(client))[0]
            os.kill(victim["pid"], signal.SIGKILL)
            return await client.send("a", Add(number=2)) + await client.send("b", Add(number=1))

    assert asyncio.run(kill_and_go_on()) == 3
    assert running.wait_for("restarted")["text"]
