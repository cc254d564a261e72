"""A standalone cluster of processes: an app goes on while workers and drivers are killed; jobs run there; code reaches
executors."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from engram import Client
from engram.spark.batch import run_batch
from engram.spark.progress import Tell
from engram.spark.spark import Spark
from engram.spark.tables import Tables, tables_of

from sample_apps.social import app as social
from tests.spark.crowd import Crowd
from tests.spark.ledger import app
from tests.spark.load import Load, last_owners
from tests.spark.quick import QUICK, QUICK_OPTIONS
from tests.spark.running import ROOT, START_S, Running
from tests.spark.standalone import Daemon, Standalone
from tests.spark.story import PEOPLE, SOCIAL, Story
from tests.spark.test_kill import owners

pytestmark = pytest.mark.spark

SMALL = ("--spark-conf", "spark.executor.memory=512m")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def test_the_social_network_loses_nothing_when_workers_are_killed_and_others_started(
    start: Callable[..., Running], cluster: Standalone, capsys: pytest.CaptureFixture[str]
):
    """Its shards move to the worker that is left, and from there to one that was started later. What was acknowledged
    before, in between and after has taken effect once: who follows whom, how many follow, posts and likes."""
    options = ("--shards", "2", "--partitions", "4", "--master", cluster.url, *SMALL)
    url = start(*options, app=SOCIAL, log="social.db").ready()

    async def story() -> tuple[Crowd, int, int, list[float]]:
        async with Client(url, social, patience=START_S) as client:
            crowd = Crowd(client)
            await crowd.begin()
            first = cluster.worker_of((await owners(client))[0]["pid"])
            left = next(worker for worker in cluster.workers if worker is not first)
            recovered = [await crowd.goes_on(without=kill(first, await pids_of(client)))]
            third = cluster.start_worker()
            await asyncio.to_thread(third.wait_for, "Launched? ?executor|Asked to launch executor")
            recovered.append(await crowd.goes_on(without=kill(left, await pids_of(client))))
            cluster.start_worker()
            assert {cluster.worker_of(pid).name for pid in await pids_of(client)} == {third.name}
            return crowd, *await crowd.end(), recovered

    def kill(worker: Daemon, pids: list[int]) -> list[int]:
        """The shards that were below it."""
        below = [pid for pid in pids if cluster.worker_of(pid) is worker]
        worker.kill()
        return below

    crowd, lost, doubled, recovered = asyncio.run(story())
    with capsys.disabled():
        told = " and ".join(f"{seconds:.1f} s" for seconds in recovered)
        print(  # noqa: T201 - stated in the output
            f"\n  two workers killed: every user was served again after {told}; "
            f"of {crowd.traffic.acknowledged:,} acknowledged commands {lost} were lost, and {doubled} had effect twice"
        )
    assert (lost, doubled) == (0, 0)
    assert crowd.traffic.acknowledged == crowd.sent


async def pids_of(client: Client) -> list[int]:
    return [shard["pid"] for shard in (await owners(client)).values()]


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


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    with closing(Story(tmp_path, f"sqlite:{tmp_path / 'social.db'}")) as made:
        made.live(savepoint="noon")
        yield made


def test_a_job_runs_on_the_cluster(cluster: Standalone, story: Story):
    """`engram rebuild` comes to the digests of a replay."""
    command = [sys.executable, "-m", "engram.cli.main", "rebuild", SOCIAL, "--log", story.url, "--json"]
    options = ["--master", cluster.url, *SMALL, *QUICK_OPTIONS]
    said = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, timeout=START_S, check=True)

    rebuilt = json.loads(said.stdout)["partitions"]
    assert {each["partition"]: each["digest"] for each in rebuilt} == story.digests()


APP = """
from dataclasses import dataclass
from engram import App, Command, Context, Entity, allow

@dataclass(slots=True, kw_only=True)
class User(Entity, name="{user}"):
    name: str = ""

class Register(Command[User, None], name="register", authorize=allow.owner):
    name: str

    def handle(self, user: User, ctx: Context) -> None:
        user.name = self.name

app = App("social", commands=[Register])
"""


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The settings for an environment that is sent, as the docs have them. It has a module that the driver has too:
    an entity that is called `sent` there is called `kept` here."""
    python = tmp_path / "python"
    path = ":".join([*sys.path, "$(dirname $0)"])
    python.write_text(f'#!/bin/sh\nENGRAM_PACKED=yes PYTHONPATH="{path}:$PYTHONPATH" exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    for name in ("kept", "sent"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "packed_app.py").write_text(APP.format(user=name))
    with tarfile.open(tmp_path / "packed.tar.gz", "w:gz") as archive:
        archive.add(python, "bin/python")
        archive.add(tmp_path / "sent" / "packed_app.py", "bin/packed_app.py")
    monkeypatch.syspath_prepend(tmp_path / "kept")
    return {
        "spark.archives": f"{tmp_path / 'packed.tar.gz'}#environment",
        "spark.pyspark.python": "./environment/bin/python",
        "spark.executor.memory": "512m",
        **QUICK,
    }


def test_code_and_interpreter_are_sent_to_the_executors(
    cluster: Standalone, story: Story, packed: dict[str, str], tmp_path: Path
):
    """`spark.submit.pyFiles` brings modules, `spark.archives` an interpreter of their own. Jobs and SQL run in it and
    find what it finds: nothing of the driver's path is used. What SQL reads is planned by the driver's own."""
    with zipfile.ZipFile(tmp_path / "shop.zip", "w") as modules:
        modules.writestr("sent_to_executors.py", "word = 'from the zip'\n")

    def look(_piece: int, _tell: Tell) -> tuple[str | None, str]:
        import os

        from sent_to_executors import word

        return os.environ.get("ENGRAM_PACKED"), word

    settings = {**packed, "spark.submit.pyFiles": str(tmp_path / "shop.zip")}
    with Spark(name="sent", master=cluster.url, slots=1, log_file=tmp_path / "spark.log", settings=settings) as spark:
        found = run_batch(spark, [1, 2], look)
        tables = Tables(spark.session, tables_of("packed_app:app", log=story.url, snapshots=""))
        rows = tables.ask("select entity, count(*) from log where name = 'register' group by entity").collect()

    assert found == [("yes", "from the zip")] * 2
    assert [tuple(row) for row in rows] == [("sent", len(PEOPLE))]
