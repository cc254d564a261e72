"""What a running app says of itself: shards, partitions, digests, and where it listens."""

from __future__ import annotations

import asyncio

from engram.codec.codec import Codec
from engram.image.image import Image
from engram.shard.replay import replay_until

from tests.serving.counter import Add
from tests.serving.running import RunningApp


def test_the_status_has_every_shard_and_partition(counters: RunningApp):
    """Two shards share four partitions, all of them served."""
    status = counters.http.get("/api/counters").json()

    assert (status["app"], status["version"], status["partitions"]) == ("counters", 1, 4)
    owned = {shard["shard"]: [p["partition"] for p in shard["partitions"]] for shard in status["shards"]}
    assert owned == {0: [0, 2], 1: [1, 3]}
    assert {p["state"] for shard in status["shards"] for p in shard["partitions"]} == {"serving"}


def test_the_digests_are_those_of_a_replay(counters: RunningApp):
    """The digest of live state, over HTTP, is that of the log replayed from zero."""

    async def talk() -> dict[int, str]:
        async with counters.client() as client:
            await asyncio.gather(*(client.send(f"digest{number}", Add()) for number in range(20)))
            status = await client.status(digests=True)
            return {p["partition"]: p["digest"] for shard in status["shards"] for p in shard["partitions"]}

    live = asyncio.run(talk())
    replayed = {}
    for partition in range(4):
        image = Image(partition, Codec(counters.app))
        end = counters.log.end(partition)
        replay_until(image, counters.log, end, effects=lambda *_: None, progress=lambda: None)
        replayed[partition] = image.digest()

    assert live == replayed


def test_everything_listens_on_loopback_only(counters: RunningApp):
    """The registry and every shard are at 127.0.0.1."""
    addresses = {shard["address"] for shard in counters.http.get("/api/counters").json()["shards"]}

    assert len(addresses) == 2
    assert all(address.startswith("tcp://127.0.0.1:") for address in (*addresses, counters.registry.address))
