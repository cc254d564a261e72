"""A standalone cluster of processes: an app goes on while workers and drivers are killed; code reaches executors."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from engram import Client
from engram.spark.batch import run_batch
from engram.spark.progress import Tell
from engram.spark.spark import Spark

from tests.spark.ledger import app
from tests.spark.load import Load, last_owners
from tests.spark.running import START_S, Running
from tests.spark.standalone import Standalone
from tests.spark.test_kill import owners

pytestmark = pytest.mark.spark

SMALL = ("--spark-conf", "spark.executor.memory=512m")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def test_workers_are_killed_and_others_started_and_nothing_is_lost(
    start: Callable[..., Running], cluster: Standalone, capsys: pytest.CaptureFixture[str]
):
    """Its shards move to the worker that is left, and from there to one that was started later."""
    running = start("--shards", "2", "--partitions", "4", "--master", cluster.url, *SMALL)
    url = running.ready()
    first, second = cluster.workers[:2]

    async def story() -> tuple[dict[str, list[int]], dict[str, list[int]], list[float]]:
        async with Client(url, app, patience=START_S) as client:
            load = Load(client)
            await load.goes_on()
            first.kill()
            recovered = [await load.goes_on()]
            third = cluster.start_worker()
            await asyncio.to_thread(third.wait_for, "Launched? ?executor|Asked to launch executor")
            second.kill()
            recovered.append(await load.goes_on())
            cluster.start_worker()
            pids = [shard["pid"] for shard in (await owners(client)).values()]
            assert {cluster.worker_of(pid).name for pid in pids} == {third.name}
            return load.acknowledged, await load.end(), recovered

    acknowledged, there, recovered = asyncio.run(story())
    with capsys.disabled():
        told = " and ".join(f"{seconds:.1f} s" for seconds in recovered)
        print(f"\n  two workers killed: every key was served again after {told}")  # noqa: T201 - stated in the output
    assert there == acknowledged


def test_a_driver_that_is_killed_is_started_again_at_once_and_takes_over(
    start: Callable[..., Running], cluster: Standalone, free_port: int, capsys: pytest.CaptureFixture[str]
):
    """SIGKILL under load, and a new start in the same moment: the old shards are fenced, and nothing is lost."""
    options = ("--shards", "2", "--partitions", "4", "--master", cluster.url, "--port", str(free_port), *SMALL)
    killed = start(*options)
    url = killed.ready()

    async def story() -> tuple[dict[str, list[int]], dict[str, list[int]], float, set[str], set[str]]:
        async with Client(url, app, patience=START_S) as client:
            load = Load(client)
            await load.goes_on()
            before = {shard["owner"] for shard in (await owners(client)).values()}
            killed.process.send_signal(signal.SIGKILL)
            started = start(*options)
            seconds = await load.goes_on()
            await asyncio.to_thread(started.ready)
            after = {shard["owner"] for shard in (await owners(client)).values()}
            return load.acknowledged, await load.end(), seconds, before, after

    acknowledged, there, seconds, before, after = asyncio.run(story())
    with capsys.disabled():
        print(f"\n  the driver killed and started again: every key was served again after {seconds:.1f} s")  # noqa: T201
    assert there == acknowledged
    assert not before & after
    assert last_owners(killed.log) == after


def test_an_app_whose_spark_is_lost_ends_and_says_so(start: Callable[..., Running]):
    """Nothing can bring back a driver's JVM but a new start: exit code 3, for whoever supervises it."""
    running = start("--shards", "1", "--partitions", "1")
    running.ready()
    (jvm,) = (p for p in psutil.Process(running.process.pid).children() if "java" in p.name())
    os.kill(jvm.pid, signal.SIGKILL)

    assert running.process.wait(START_S) == 3
    assert running.process.stderr is not None
    said = running.process.stderr.read()
    assert said.startswith("engram: Spark was lost (")
    assert "start the app again" in said


def test_code_and_interpreter_are_sent_to_the_executors(cluster: Standalone, tmp_path: Path):
    """`spark.submit.pyFiles` brings modules, `spark.archives` an interpreter of their own: nothing of the driver's path
    is used."""
    with zipfile.ZipFile(tmp_path / "shop.zip", "w") as modules:
        modules.writestr("sent_to_executors.py", "word = 'from the zip'\n")
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\nENGRAM_PACKED=yes PYTHONPATH="{":".join(sys.path)}:$PYTHONPATH" exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    with tarfile.open(tmp_path / "packed.tar.gz", "w:gz") as packed:
        packed.add(python, "bin/python")

    def look(_piece: int, _tell: Tell) -> tuple[str | None, str]:
        import os

        from sent_to_executors import word

        return os.environ.get("ENGRAM_PACKED"), word

    settings = {
        "spark.submit.pyFiles": str(tmp_path / "shop.zip"),
        "spark.archives": f"{tmp_path / 'packed.tar.gz'}#environment",
        "spark.pyspark.python": "./environment/bin/python",
        "spark.executor.memory": "512m",
    }
    with Spark(name="sent", master=cluster.url, slots=1, log_file=tmp_path / "spark.log", settings=settings) as spark:
        found = run_batch(spark, [1, 2], look)

    assert found == [("yes", "from the zip")] * 2
