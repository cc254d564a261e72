"""`engram replay --verify`: a log, compared with every snapshot on the way."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from engram import App

from tests.cli.saying import Engram, sentence
from tests.cli.wavering import WAVER, Weigh, app, next_app
from tests.serving.running import RunningApp


def weigh(folder: Path, of: App, *weights: int) -> None:
    """Runs an app: weights for some scales, a snapshot after each, and a clean stop."""
    with RunningApp(of, folder, partitions=2, shards=1) as running:

        async def work() -> None:
            async with running.client() as client:
                for number, by in enumerate(weights):
                    for scale in range(4):
                        await client.send(f"scale{scale}", Weigh(by=by))
                    await client.take_snapshots(f"after-{of.version}-{number}" if number % 2 else "")

        asyncio.run(work())


def verify(engram: Engram, folder: Path, app: str = "app", *more: str):
    options = ["--log", f"sqlite:{folder / 'log.db'}", "--snapshots", folder / "snapshots", *more]
    return engram("replay", f"tests.cli.wavering:{app}", "--verify", *options)


def test_every_snapshot_on_the_way_is_compared(engram: Engram, tmp_path: Path):
    """Snapshots and savepoints of all partitions, whole ones and those of what had changed, are what a replay gives."""
    weigh(tmp_path, app, 1, 2, 3)
    result = verify(engram, tmp_path, "app", "--json")
    rows = json.loads(result.stdout)["partitions"]

    assert result.exit_code == 0
    assert [row["partition"] for row in rows] == [0, 1]
    assert all(row["compared"] >= 3 and row["differs"] is None and row["begun"] == 0 for row in rows)
    assert "compared with" in verify(engram, tmp_path).stdout


def test_the_first_that_differs_is_named(engram: Engram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """By its partition and record, with the last record up to which they were the same."""
    monkeypatch.setenv(WAVER, "100")
    weigh(tmp_path, app, 1, 100, 1)
    monkeypatch.setenv(WAVER, "101")
    result = verify(engram, tmp_path, "app", "--json")
    first = json.loads(result.stdout)["partitions"][0]["differs"]

    assert result.exit_code == 2
    assert first["partition"] == 0
    assert 0 < first["equal"] < first["offset"]
    assert f"Partition 0 differs at record {first['offset']}" in result.stderr
    assert f"Up to record {first['equal']} they were the same" in result.stderr


def test_after_an_upgrade_it_begins_at_the_boundary(engram: Engram, tmp_path: Path):
    """What another version handled cannot be handled again: the replay begins with the snapshot after it."""
    weigh(tmp_path, app, 1, 2)
    weigh(tmp_path, next_app, 3, 4)
    rows = json.loads(verify(engram, tmp_path, "next_app", "--json").stdout)["partitions"]

    assert all(row["begun"] > 0 and row["compared"] >= 2 and row["differs"] is None for row in rows)
    said = sentence(verify(engram, tmp_path, "app"), 2)
    assert "cannot be verified by version 1 of scales" in said


def test_without_snapshots_to_compare_with_it_is_refused(engram: Engram, tmp_path: Path):
    """A place for snapshots belongs to --verify."""
    log = f"sqlite:{tmp_path / 'log.db'}"
    said = sentence(engram("replay", "tests.cli.wavering:app", "--log", log, "--snapshots", "x"), 2)
    assert "add --verify" in said
