"""`engram rebuild` on a real Spark, over both logs: executors and the driver killed, and what is refused."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from engram import App
from engram.cli.rebuild import run_rebuild
from engram.dev.kafka import Brokers
from engram.errors import Corrupt, Misuse
from engram.log.open import open_log
from engram.snapshots.files import FileSnapshots
from engram.spark.rebuild import RebuildJob
from engram.spark.spark import Spark

from tests.shard.network import Network
from tests.spark.mortal import Give, app, newer
from tests.spark.quick import QUICK, QUICK_OPTIONS
from tests.spark.running import ROOT, START_S, eventually, executors_below

pytestmark = pytest.mark.spark

MORTAL, NEWER = "tests.spark.mortal:app", "tests.spark.mortal:newer"
GIVEN = 160


class Pots:
    """Pots in two partitions, an app that has ended, and where its snapshots are."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self.snapshots = folder / "snapshots"
        self.log = open_log(url, app.name, partitions=2, create=True)
        self.store = FileSnapshots(self.snapshots, app.name)
        self.network = Network(app=app, log=self.log, store=self.store, reopen=lambda: open_log(url, app.name))
        owner = self.network.start(snapshot_every=40)
        # One of the last looks into the folder, when snapshots were made of what is before it.
        looking = max(number for number in range(GIVEN - 10) if self.network.home(f"pot{number % 7}") == 1)
        for number in range(GIVEN):
            place = str(folder) if number == looking else ""
            to = f"pot{(number + 1) % 7}"
            self.network.send(f"pot{number % 7}", Give(coin=number, to=to, folder=place))
        self.network.settle(owner)
        owner.stop()

    @property
    def digests(self) -> dict[int, str]:
        return {p: self.network.replayed(p).digest() for p in (0, 1)}

    def lose_snapshots(self) -> None:
        for partition in (0, 1):
            for manifest in self.store.manifests(partition):
                self.store.set_aside(manifest)

    def rebuild(self, spark: Spark, *, anew: bool = False, of: App = app, reference: str = MORTAL, every: int = 10):
        job = RebuildJob(reference=reference, log=self.url, snapshots=str(self.snapshots), every=every, anew=anew)
        return run_rebuild(spark, of, job, [0, 1])

    def installed(self) -> dict[int, tuple[int, str]]:
        found = {p: self.store.newest(p) for p in (0, 1)}
        return {p: (loaded.manifest.offset, loaded.manifest.digest) for p, loaded in found.items() if loaded}

    def wanted(self) -> dict[int, tuple[int, str]]:
        return {p: (self.log.end(p), digest) for p, digest in self.digests.items()}

    def close(self) -> None:
        self.network.close()
        self.log.close()


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spark]:
    log_file = tmp_path_factory.mktemp("spark") / "spark.log"
    with Spark(name="rebuild", master="local[2]", slots=1, log_file=log_file, settings=QUICK) as spark:
        yield spark


@pytest.fixture
def pots(tmp_path: Path) -> Iterator[Pots]:
    made = Pots(tmp_path, f"sqlite:{tmp_path / 'log.db'}")
    yield made
    made.close()


@pytest.fixture(params=["sqlite", "kafka"])
def both(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pots]:
    url = f"sqlite:{tmp_path / 'log.db'}"
    if request.param == "kafka":
        brokers: Brokers = request.getfixturevalue("kafka")
        url = brokers.url(f"rebuild-{secrets.token_hex(4)}")
    made = Pots(tmp_path, url)
    yield made
    made.close()


def test_snapshots_come_back_although_a_task_is_killed(spark: Spark, both: Pots):
    """SIGKILL of an executor's Python process in the middle of a partition: Spark starts the task again, it goes on
    from its newest rebuilt snapshot, and every partition is as it was; a start then has nothing to replay."""
    (both.folder / "kill").touch()

    both.lose_snapshots()
    found, aside = both.rebuild(spark)
    assert not (both.folder / "kill").exists()
    assert any(each.begun > 0 for each in found)
    assert both.installed() == both.wanted()
    assert (aside, [each.left for each in found]) == (0, [0, 0])
    assert list((both.snapshots / "rebuild.work" / "1" / "mortal").iterdir()) == []
    again = both.network.start()
    assert sum(p.replayed for p in again.shard.status().partitions) == 0


def test_the_apps_own_snapshots_are_compared_with(spark: Spark, pots: Pots):
    """They are the same, and stay; one that differs ends the rebuild in one sentence, and nothing is changed."""
    before = [m.name for p in (0, 1) for m in pots.store.manifests(p)]
    found, _ = pots.rebuild(spark)
    assert all(each.compared and not any(one.problem for one in each.compared) for each in found)
    assert {*before} <= {m.name for p in (0, 1) for m in pots.store.manifests(p)}

    loaded = pots.store.newest(0)
    wrong = loaded.contents._replace(memory=loaded.memory.model_copy(update={"time": 7, "offset": 3}))
    pots.store.publish(0, wrong, created=0)
    before = sorted(path.name for path in (pots.snapshots / "mortal").rglob("*"))
    with pytest.raises(
        Corrupt, match=r"Partition 0 comes to another state at record 3 than .* add --anew\. Nothing was"
    ):
        pots.rebuild(spark)
    assert sorted(path.name for path in (pots.snapshots / "mortal").rglob("*")) == before


def test_another_version_reads_the_log_anew_only_when_it_is_told_to(spark: Spark, pots: Pots):
    """Without the flag it is refused with both versions; with it, the old snapshots are set aside, and the new version
    starts with nothing to replay."""
    with pytest.raises(
        Misuse, match=r"This is version 2 of mortal, and the log has \d+ records by version 1, .* --anew\."
    ):
        pots.rebuild(spark, of=newer, reference=NEWER)
    _, aside = pots.rebuild(spark, of=newer, reference=NEWER, anew=True)

    assert aside > 0
    assert [len(pots.store.manifests(p)) for p in (0, 1)] == [1, 1]
    again = pots.network.start(app=newer)
    assert sum(p.replayed for p in again.shard.status().partitions) == 0
    assert {p: again.partition(p).digest for p in (0, 1)} == pots.digests


def test_a_log_that_was_not_ended_cleanly_is_not_read_anew(spark: Spark, pots: Pots):
    """Other code cannot tell what was sent: the way out is said."""
    pots.network.start().kill()

    with pytest.raises(Misuse, match=r"Partition 0 was not ended cleanly, .* end it with `engram savepoint`\."):
        pots.rebuild(spark, anew=True)


def engram(*arguments: str) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "engram.cli.main", *arguments]
    return subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def held_up(pots: Pots, master: str) -> subprocess.Popen[str]:
    """`engram rebuild`, half-way through partition 1, which has what holds it: it goes on when there is no `hold` any
    more."""
    pots.lose_snapshots()
    (pots.folder / "hold").touch()
    where = ["--log", pots.url, "--snapshots", str(pots.snapshots), "--master", master, "--every", "10", "--json"]
    driver = engram("rebuild", MORTAL, *where, *QUICK_OPTIONS)

    def half_done() -> bool:
        assert driver.poll() is None, driver.communicate()
        return any(pots.folder.glob("snapshots/rebuild.work/1/mortal/partition-0001/*.json"))

    if not eventually(half_done, START_S):
        driver.kill()
        raise AssertionError(driver.communicate())
    return driver


def test_after_a_kill_of_the_driver_it_goes_on(spark: Spark, pots: Pots):
    """SIGKILL of `engram rebuild` while a partition is half done: nothing of it is seen where the app starts; the next
    run goes on, and comes to the same."""
    driver = held_up(pots, "local[1]")
    below = psutil.Process(driver.pid).children(recursive=True)
    driver.kill()
    driver.communicate()
    gone, alive = psutil.wait_procs([p for p in below if p.name() == "java"], 60)
    for process in alive:
        process.kill()
    (pots.folder / "hold").unlink()
    assert (len(gone), pots.installed()) == (1, {})

    found, _ = pots.rebuild(spark)
    assert any(each.begun > 0 for each in found)
    assert pots.installed() == pots.wanted()


def test_after_a_kill_of_the_executor_it_goes_on(pots: Pots):
    """SIGKILL of the executor's JVM while a partition is half done: Spark starts another one, which goes on from what
    was rebuilt, and `engram rebuild` ends as if nothing had been."""
    driver = held_up(pots, "local-cluster[1,2,1024]")
    try:
        (executor,) = executors_below(driver.pid)
        os.kill(executor, signal.SIGKILL)
        (pots.folder / "hold").unlink()
        said, problem = driver.communicate(timeout=START_S)
    finally:
        driver.kill()

    assert driver.returncode == 0, problem
    assert any(each["begun"] > 0 for each in json.loads(said)["partitions"])
    assert pots.installed() == pots.wanted()
