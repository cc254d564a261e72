"""`make killed`: every long job over Kafka; the driver is killed in its middle, then, as it is run again, an executor.

It takes minutes, and `make test` kills most of these jobs one by one: so it is run by itself.
"""

from __future__ import annotations

import csv
import os
import pickle
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from engram.codec.codec import Codec
from engram.dev.kafka import Brokers
from engram.image.image import Image
from engram.log.archive.archive import Archive
from engram.log.base import Unfinished
from engram.log.open import open_log
from engram.log.partitioner import partition_of
from engram.log.scan import scan
from engram.shard.past import dropped
from engram.shard.replay import replay_until
from engram.snapshots.files import FileSnapshots
from engram.snapshots.open import open_storage
from engram.spark.archive import archive_partition
from engram.spark.plan import Plan
from engram.spark.spark import Spark

from sample_apps.social import app as social
from sample_apps.social.user import User
from tests.spark.ledger import app as ledger
from tests.spark.long_jobs import JOBS, SLOTS, LongJobs
from tests.spark.quick import QUICK
from tests.spark.running import ROOT, START_S, eventually, executors_below
from tests.spark.story import PEOPLE, Story

pytestmark = pytest.mark.spark

ROWS = 3000


class Told(NamedTuple):
    """What was wrong after the driver's end, and what each job has given back at last."""

    jobs: LongJobs
    wrong: list[str]
    results: dict[str, Any]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, kafka: Brokers) -> Iterator[Told]:
    """Both kills, for all jobs at once: to start a Spark for each would take minutes."""
    folder = tmp_path_factory.mktemp("jobs")
    urls = [kafka.url(f"{name}-{secrets.token_hex(4)}") for name in ("story", "new", "filled")]
    with closing(Story(folder, urls[0])) as story:
        story.live(savepoint="noon")
        jobs = LongJobs(folder, story.url, story.snapshots, *urls[1:])
        jobs.write_source(ROWS)
        jobs.halfway.hold()
        _kill_driver(jobs)
        wrong = _half_done(jobs)
        jobs.halfway.hold()
        yield Told(jobs, wrong, _kill_executor(jobs))


def _kill_driver(jobs: LongJobs) -> None:
    driver = subprocess.Popen([sys.executable, "-m", "tests.spark.long_jobs"], cwd=ROOT, stdin=subprocess.PIPE)

    def are_there() -> bool:
        assert driver.poll() is None, "it should have been killed"
        return not jobs.halfway.missing()

    try:
        assert driver.stdin is not None
        driver.stdin.write(pickle.dumps(jobs))
        driver.stdin.close()
        assert eventually(are_there, START_S), jobs.halfway.missing()
        below = psutil.Process(driver.pid).children(recursive=True)
    finally:
        driver.kill()
        driver.wait()
    _, alive = psutil.wait_procs(below, START_S)
    assert not alive


def _half_done(jobs: LongJobs) -> list[str]:
    """What others see that they should not, after the driver has died."""
    rebuilt = FileSnapshots(jobs.folder / "rebuilt", social.name)
    plans = Plan.sealed_in(jobs.plans)
    seen = {
        "rebuild": any(rebuilt.manifests(partition) for partition in (0, 1)),
        "repartition": _opens(jobs.new_log),
        "export": jobs.exported.exists(),
        "backfill": len(plans) != 1 or plans[0].is_done,
    }
    return [name for name, wrong in seen.items() if wrong]


def _opens(log: str) -> bool:
    try:
        open_log(log, social.name).close()
    except Unfinished:
        return False
    return True


def _kill_executor(jobs: LongJobs) -> dict[str, Any]:
    master, log_file = f"local-cluster[1,{SLOTS},1024]", jobs.folder / "2.log"
    with (
        Spark(name="again", master=master, slots=SLOTS, log_file=log_file, settings=QUICK) as spark,
        ThreadPoolExecutor(len(JOBS)) as threads,
    ):
        started = jobs.start(spark, threads)

        def are_there() -> bool:
            done = [future.result() for future in started.values() if future.done()]
            assert not done, "none can be"
            return not jobs.halfway.missing()

        try:
            assert eventually(are_there, START_S), jobs.halfway.missing()
            (executor,) = executors_below(spark.context._gateway.proc.pid)
            os.kill(executor, signal.SIGKILL)
        finally:
            jobs.halfway.release()
        return {job: future.result(START_S) for job, future in started.items()}


# What came of them


def replay(log_url: str, app: Any, partition: int) -> Image:
    with closing(open_log(log_url, app.name)) as log:
        image = Image(partition, Codec(app))
        replay_until(image, log, log.end(partition), effects=dropped, progress=lambda: None)
    return image


def check_rebuild(told: Told) -> None:
    store = FileSnapshots(told.jobs.folder / "rebuilt", social.name)
    images = [replay(told.jobs.story, social, partition) for partition in (0, 1)]
    newest = [store.manifests(partition)[0] for partition in (0, 1)]
    assert [(each.offset, each.digest) for each in newest] == [(image.offset, image.digest()) for image in images]


def check_repartition(told: Told) -> None:
    store = FileSnapshots(told.jobs.folder / "repartitioned", social.name)
    found = users([Image(partition, Codec(social)) for partition in range(3)], store)
    assert found == users([replay(told.jobs.story, social, partition) for partition in (0, 1)])
    assert set(found) == set(PEOPLE)


def users(images: list[Image], store: FileSnapshots | None = None) -> dict[str, User]:
    """Of all images, or of what is to be loaded into them."""
    for image in images if store is not None else ():
        loaded = store.newest(image.partition)
        image.load_encoded(loaded.columns, loaded.memory)
    found = {
        key: image.find(User, key)
        for image in images
        for key in PEOPLE
        if partition_of(key, len(images)) == image.partition
    }
    return {key: user for key, user in found.items() if user is not None}


def check_archive(told: Told) -> None:
    """And once more, with what is old trimmed from the log."""
    with closing(open_log(told.jobs.story, social.name)) as log:
        archived = Archive(open_storage(str(told.jobs.folder / "archive"), social.name), social.name, 2)
        store = FileSnapshots(Path(told.jobs.snapshots), social.name)
        for partition in (0, 1):
            whole = list(scan(log, partition, 0))
            done = archive_partition(log, store, archived, partition, trim=True, tell=lambda *_: None)
            assert (done.added, done.start, done.begins > 0) == (0, 0, True)
            with closing(open_log(f"{told.jobs.story}?archive={told.jobs.folder / 'archive'}", social.name)) as joined:
                assert list(scan(joined, partition, 0)) == whole


def check_shadow(told: Told) -> None:
    found = told.results["shadow"]
    assert found == [told.jobs.shadow_job(partition, lambda *_: None) for partition in (0, 1)]
    assert sum(sum(each.compared.values()) for each in found) > len(PEOPLE)
    assert not any(each.different.total() for each in found)


def check_export(told: Told) -> None:
    with told.jobs.exported.open() as file:
        rows = sorted((row["key"], int(row["following"])) for row in csv.DictReader(file))
    assert rows == sorted((key, len(PEOPLE[number + 1 : number + 4])) for number, key in enumerate(PEOPLE))


def check_backfill(told: Told) -> None:
    again = told.results["backfill"]
    assert (again.appended, again.known, again.bad) == (0, ROWS, 0)
    found: dict[str, list[int]] = {}
    for partition in (0, 1):
        image = replay(told.jobs.filled_log, ledger, partition)
        found |= {key: list(each.entries) for key, each in image.entities["ledger"].items()}
    assert found == {f"key{k}": list(range(k, ROWS, 7)) for k in range(7)}


CHECKS: dict[str, Callable[[Told], None]] = {
    "rebuild": check_rebuild,
    "repartition": check_repartition,
    "shadow": check_shadow,
    "export": check_export,
    "backfill": check_backfill,
    "archive": check_archive,  # the last: it trims the log that others read
}


@pytest.mark.parametrize("job", CHECKS)
def test_a_long_job_that_was_killed_comes_to_the_same(told: Told, job: str):
    """SIGKILL of the driver, then SIGKILL of the executor of the second run: after it, all is as if nothing had been,
    and between the two nobody could take what was half done for whole."""
    assert job not in told.wrong
    CHECKS[job](told)
