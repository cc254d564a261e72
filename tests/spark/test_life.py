"""The life of an app on Spark: its sockets, its output, its end."""

from __future__ import annotations

import asyncio
import signal
import tempfile
from ipaddress import ip_address
from pathlib import Path

import psutil
import pytest
from engram import Client, Denied, Unauthenticated

from tests.spark.ledger import Add, Entries, app
from tests.spark.running import eventually

pytestmark = pytest.mark.spark


def listening(pids: list[int]) -> list[str]:
    """The addresses on which these processes listen."""
    every = psutil.net_connections(kind="inet")
    return [c.laddr.ip for c in every if c.pid in pids and c.status == psutil.CONN_LISTEN]


def is_loopback(address: str) -> bool:
    ip = ip_address(address)
    mapped = getattr(ip, "ipv4_mapped", None)
    return (mapped or ip).is_loopback


async def add(url: str, number: int) -> int:
    async with Client(url, app) as client:
        return await client.send("a", Add(number=number))


def test_an_app_listens_on_loopback_speaks_json_and_leaves_nothing_behind(start, tmp_path):
    """Driver, block manager, UI, gateway and shards are on loopback; SIGTERM ends all of it, files too."""
    running = start("--shards", "2", "--partitions", "4")
    url = running.ready()
    assert asyncio.run(add(url, 1)) == 1
    pids = [running.process.pid, *(p.pid for p in running.descendants)]
    addresses = listening(pids)
    scratch = list(Path(tempfile.gettempdir()).glob(f"engram-spark-{running.process.pid}-*"))

    code = running.stop(signal.SIGTERM)

    assert len(addresses) >= 6  # gateway, registry, two shards, Spark's driver, its UI
    assert [a for a in addresses if not is_loopback(a)] == []
    assert code == 0
    assert eventually(lambda: not running.left_over(), 10), running.left_over()
    assert not (tmp_path / "app.db-wake").exists()
    assert len(scratch) == 1
    assert not scratch[0].exists()
    assert running.process.stderr.read() == ""


def test_the_state_is_there_after_a_restart_with_another_number_of_shards(start):
    """Stopped by Ctrl-C with two shards, an app goes on with three."""
    first = start("--shards", "2", "--partitions", "4")
    asyncio.run(add(first.ready(), 1))
    assert first.stop(signal.SIGINT) == 0

    second = start("--shards", "3", "--partitions", "4")
    assert asyncio.run(add(second.ready(), 2)) == 2


def test_an_app_with_an_access_file_knows_who_asks(start, tmp_path):
    """`engram run --auth`: whoever has the token of a key sends for it, and nobody else."""
    (tmp_path / "access.toml").write_text('[[token]]\ntoken = "the-token-of-somebody"\nname = "a"\n')
    running = start("--shards", "1", "--partitions", "1", "--auth", str(tmp_path / "access.toml"))
    url = running.ready()

    async def talk() -> int:
        async with Client(url, app, token="the-token-of-somebody") as client:
            with pytest.raises(Denied):
                await client.send("b", Add(number=1))
            return await client.send("a", Add(number=1))

    assert asyncio.run(talk()) == 1
    with pytest.raises(Unauthenticated):
        asyncio.run(add(url, 2))


def test_a_driver_that_is_killed_takes_its_shards_with_it(start):
    """After SIGKILL of the driver neither the JVM nor any shard outlives it for long."""
    running = start("--shards", "2", "--partitions", "2")
    running.ready()

    running.stop(signal.SIGKILL)

    assert eventually(lambda: not running.left_over(), 40), running.left_over()


def test_too_few_task_slots_are_refused(start):
    """Two shards on a master with one slot: one sentence, exit code 2, and no process left."""
    running = start("--shards", "2", "--partitions", "2", "--master", "local[1]")

    assert running.process.wait(60) == 2
    said = running.process.stderr.read()
    assert said == (
        "engram: 2 shards need 2 task slots, but local[1] has 1: use fewer --shards, or a master with more cores "
        "(such as local[2]).\n"
    )


def test_a_cluster_of_executors_works_like_the_local_master(start):
    """On local-cluster the shards live in executor JVMs of their own, and still on loopback."""
    running = start("--shards", "2", "--partitions", "4", "--master", "local-cluster[2,2,1024]")
    url = running.ready()

    async def talk() -> list[int]:
        async with Client(url, app) as client:
            for number in range(20):
                await client.send(f"key{number % 5}", Add(number=number))
            return await client.ask("key0", Entries())

    assert asyncio.run(talk()) == [0, 5, 10, 15]
    pids = [running.process.pid, *(p.pid for p in running.descendants)]
    assert [a for a in listening(pids) if not is_loopback(a)] == []
    assert running.stop() == 0
    assert eventually(lambda: not running.left_over(), 20), running.left_over()
