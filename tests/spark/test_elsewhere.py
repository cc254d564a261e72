"""Snapshots in a bucket, of an app on real Spark."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from engram import Client
from engram.snapshots.open import open_store

from tests.snapshots.s3 import s3_server
from tests.spark.ledger import Add, Entries, app
from tests.spark.running import Running

pytestmark = pytest.mark.spark


async def add(url: str, number: int) -> int:
    async with Client(url, app) as client:
        return await client.send("a", Add(number=number))


async def look(url: str) -> tuple[list[int], dict[int, tuple[int, str]]]:
    """The entries, and of every partition how many records it has replayed and its digest."""
    async with Client(url, app) as client:
        entries = await client.ask("a", Entries())
        shards = (await client.status(digests=True))["shards"]
    of = {p["partition"]: (p["replayed"], p["digest"]) for shard in shards for p in shard["partitions"]}
    return entries, of


def test_an_app_keeps_its_snapshots_in_a_bucket(
    start: Callable[..., Running], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its shards publish to a real S3 server, and keep a copy beside the log. On a machine without that copy, they
    start from the bucket: nothing is replayed, and the image has the digest that the snapshot says."""
    with s3_server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        store = open_store("s3://snapshots/here", app.name)
        running = start("--shards", "1", "--partitions", "2", "--snapshots", "s3://snapshots/here")
        url = running.ready()
        assert asyncio.run(add(url, 1)) == 1
        assert running.stop() == 0
        published = [store.manifests(partition)[0] for partition in range(2)]
        entities = sum(len(store.read(manifest).contents.entities) for manifest in published)
        copied = sorted(path.stem for path in (tmp_path / "app.db-snapshots-copy").rglob("0*.json"))
        shutil.rmtree(tmp_path / "app.db-snapshots-copy")

        again = start("--shards", "1", "--partitions", "2", "--snapshots", "s3://snapshots/here")
        url = again.ready()
        found, partitions = asyncio.run(look(url))
        assert asyncio.run(add(url, 2)) == 2
        assert again.stop() == 0

    assert copied == sorted(manifest.name for manifest in published)
    assert entities == 1
    assert found == [1]
    assert partitions == {manifest.partition: (0, manifest.digest) for manifest in published}
