"""Snapshots in a bucket, of an app on real Spark."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from engram import Client
from engram.snapshots.open import open_store

from tests.snapshots.s3 import s3_server
from tests.spark.ledger import Add, app
from tests.spark.running import Running

pytestmark = pytest.mark.spark


async def add(url: str, number: int) -> int:
    async with Client(url, app) as client:
        return await client.send("a", Add(number=number))


def test_an_app_keeps_its_snapshots_in_a_bucket(
    start: Callable[..., Running], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its shards publish to a real S3 server, and keep a copy beside the log."""
    with s3_server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        store = open_store("s3://snapshots/here", app.name)
        running = start("--shards", "1", "--partitions", "2", "--snapshots", "s3://snapshots/here")
        url = running.ready()
        assert asyncio.run(add(url, 1)) == 1
        assert running.stop() == 0
        published = [store.manifests(partition)[0] for partition in range(2)]
        loaded = [store.read(manifest) for manifest in published]

    copied = sorted(path.stem for path in (tmp_path / "app.db-snapshots-copy").rglob("0*.json"))
    assert copied == sorted(manifest.name for manifest in published)
    assert sum(len(one.contents.entities) for one in loaded) == 1
