"""`engram run --guard`: handlers that are not deterministic are refused at the start, or reported while they run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from engram.shard.policy import Policy

from tests.cli.saying import Engram, sentence
from tests.serving.running import RunningApp
from tests.testing.ways import ListsAFolder, app_of


def test_a_handler_whose_code_shows_it_is_refused(engram: Engram, tmp_path: Path):
    """Before Spark is started and a log is made, with the line and the way out."""
    said = sentence(engram("run", "tests.cli.wavering:app", "--log", "sqlite:x.db", "--guard"), 2)

    assert "1 handlers of scales are not deterministic" in said
    assert "Weigh touched the environment (os.environ, in Weigh.handle, cli/wavering.py, line" in said
    assert not (tmp_path / "x.db").exists()


def test_what_a_handler_touches_while_it_runs_is_reported_once(tmp_path: Path):
    """In the status of its shard, and to who runs the app; the command is handled all the same."""
    told: list[str] = []

    async def work(running: RunningApp) -> None:
        async with running.client() as client:
            for _ in range(3):
                await client.send("n1", ListsAFolder())

    with RunningApp(app_of(ListsAFolder), tmp_path, shards=1, policy=Policy(guard=True)) as running:
        running.registry.on_touch(told.append)
        asyncio.run(work(running))
        running.wait_until(lambda: bool(told))
        (shard,) = running.http.get(running.base).json()["shards"]

    assert told == shard["not_deterministic"]
    assert told[0].startswith("ListsAFolder touched files (os.listdir, in ListsAFolder.touch, testing/ways.py, line")


def test_without_it_nothing_is_said(tmp_path: Path):
    """A shard that does not guard its handlers has nothing to report."""

    async def work(running: RunningApp) -> dict[str, Any]:
        async with running.client() as client:
            await client.send("n1", ListsAFolder())
            return await client.status()

    with RunningApp(app_of(ListsAFolder), tmp_path, shards=1) as running:
        (shard,) = asyncio.run(work(running))["shards"]
    assert shard["not_deterministic"] == []
