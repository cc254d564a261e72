"""`make hosts`: an app on four machines, as network namespaces, of which one is cut off from the others in three ways.

On the first are the driver and Spark's master, on the second a Kafka broker, on the others a worker each. Under load,
the machine of a shard is cut off from everybody, from the log alone, and from the driver alone. Each time every key is
served again; at the end each partition has one owner, and what is there is what was acknowledged.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engram import Client
from rich.console import Console
from rich.table import Table

from tests.hosts.network import Network
from tests.spark.ledger import app
from tests.spark.load import Load, last_owners
from tests.spark.running import START_S, Running, eventually
from tests.spark.standalone import Daemon, Place, Standalone
from tests.spark.test_kill import owners

# Longer than a shard waits for its registry and than Spark waits for an executor.
_CUT_S = 45.0
# Cut off from the log alone nobody takes over: the shard is there, and goes on when the log is.
_LOG_CUT_S = 15.0
_CONSOLE = Console()


def main() -> None:
    os.environ["JDK_JAVA_OPTIONS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    with Network("driver", "log", "one", "two") as network, tempfile.TemporaryDirectory() as folder:
        network.enter("driver")
        with _broker(network) as broker:
            assert broker.stdout is not None
            bootstrap = broker.stdout.readline().strip()
            _run(network, Path(folder), f"kafka://{bootstrap}/ledger")


def _broker(network: Network) -> subprocess.Popen[str]:
    """Ends when its input does."""
    command = [*network.on("log"), sys.executable, "-m", "tests.hosts.broker", network.address("log")]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _run(network: Network, folder: Path, log: str) -> None:
    places = {name: Place(network.address(name), network.on(name)) for name in ("driver", "one", "two")}
    closed = {
        "spark.authenticate": "true",
        "spark.authenticate.secret": secrets.token_hex(16),
        "spark.network.crypto.enabled": "true",
    }
    workers = [places["one"], places["two"]]
    with Standalone(folder, master=places["driver"], workers=workers, settings=closed) as cluster:
        os.environ["SPARK_CONF_DIR"] = str(cluster.folder)
        running = Running(
            folder,
            *("--master", cluster.url, "--registry-host", network.address("driver"), "--shards", "2"),
            *("--partitions", "4", "--snapshots", str(folder / "snapshots"), "--snapshot-every", "100"),
            *("--spark-conf", "spark.authenticate=true", "--spark-conf", "spark.executor.memory=512m"),
            log=log,
        )
        try:
            asyncio.run(_story(running, network, cluster, log))
        finally:
            running.close()


async def _story(running: Running, network: Network, cluster: Standalone, log: str) -> None:
    url = await asyncio.to_thread(running.ready)
    hosts = dict(zip((worker.name for worker in cluster.workers), ("one", "two"), strict=True))
    table = Table("machine", "cut off from", "for", "every key served again after", "by", title_justify="left")
    async with Client(url, app, patience=_CUT_S + START_S) as client:
        load = Load(client)
        await load.goes_on()

        async def cut_off(from_: str, cut: Callable[[str], None], heal: Callable[[str], None]) -> None:
            """Cuts off the machine of shard 0 until the others have taken over, or, if they cannot, for a while."""
            victim = (await owners(client))[0]
            worker = cluster.worker_of(victim["pid"])
            name, began = hosts[worker.name], time.monotonic()
            cut(name)
            if from_ == "the log":
                await asyncio.sleep(_LOG_CUT_S)
                heal(name)
            else:
                await _taken_over(client, victim["owner"])
            await load.goes_on()
            seconds = time.monotonic() - began
            now = (await owners(client))[0]
            if from_ != "the log":
                await asyncio.sleep(max(_CUT_S - seconds, 0))
                heal(name)
                assert eventually(lambda: not _alive(victim["pid"]), START_S), "the old owner still runs"
            lasted = time.monotonic() - began
            by = "the same" if now["owner"] == victim["owner"] else hosts[cluster.worker_of(now["pid"]).name]
            table.add_row(name, from_, f"{lasted:.0f} s", f"{seconds:.1f} s", by)
            await _whole(client, cluster.workers)

        await cut_off("everybody", network.unplug, network.plug)
        await cut_off("the log", lambda n: network.deafen(n, "log"), lambda n: network.restore(n, "log"))
        await cut_off("the driver", lambda n: network.deafen(n, "driver"), lambda n: network.restore(n, "driver"))
        there = await load.end()
        now = {shard["owner"] for shard in (await owners(client)).values()}
    _CONSOLE.print(table)
    assert there == load.acknowledged, "what is there is not what was acknowledged"
    assert last_owners(log) == now, "the log names other owners than the registry"
    total = sum(map(len, there.values()))
    _CONSOLE.print(
        f"{total:,} commands were acknowledged, and each has taken effect once; one owner of each partition."
    )


async def _taken_over(client: Client, owner: str) -> None:
    await _until(client, lambda shards: shards[0]["owner"] != owner)


async def _whole(client: Client, workers: list[Daemon]) -> None:
    """Waits until both machines could take over again, and the last words of old owners have been heard."""
    await _until(client, lambda shards: all(of["silent_s"] < 2 and _alive(of["pid"]) for of in shards.values()))
    assert all(worker.process.poll() is None for worker in workers), "a worker has ended"


async def _until(client: Client, holds: Callable[[dict[int, dict[str, Any]]], bool]) -> None:
    async with asyncio.timeout(START_S):
        while not holds(await owners(client)):  # noqa: ASYNC110 - what is waited for is in another process
            await asyncio.sleep(0.1)


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


if __name__ == "__main__":
    main()
