"""`engram repartition` and `engram archive` on a real Spark, over both logs, with tasks and drivers that are killed."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from engram.cli.repartition import RepartitionOptions, plan_of
from engram.cli.replay import replayed
from engram.codec.codec import Codec
from engram.codec.record import Kind
from engram.errors import Misuse
from engram.log.base import Unfinished
from engram.log.open import open_log
from engram.log.scan import scan
from engram.reshape.plan import Plan
from engram.snapshots.files import FileSnapshots
from engram.snapshots.manifest import Manifest
from engram.spark.archive import ArchivePlan, archive
from engram.spark.batch import run_batch
from engram.spark.progress import Progress
from engram.spark.repartition import Made, repartition
from engram.spark.spark import Spark

from tests.reshape.drafts import REFERENCE, Places, Town
from tests.reshape.town import app
from tests.spark.quick import QUICK
from tests.spark.running import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quiet")]

# A driver that is killed after so many steps, or words of progress.
_DRIVER = """
import os, pickle, signal, sys
from engram.spark.archive import archive
from engram.spark.batch import run_batch
from engram.spark.repartition import repartition
from engram.spark.spark import Spark

plan, steps, folder = pickle.load(sys.stdin.buffer)

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def run(*work, **how):
    global steps
    done = run_batch(*work, **how)
    steps -= 1
    die() if not steps else None
    return done

with Spark(name="dying", master="local[1]", slots=1, log_file=folder / "dying.log") as spark:
    if steps:
        repartition(spark, plan, told=lambda *_: lambda _: None, run=run)
    else:
        archive(spark, plan, 4, on_progress=die)
"""


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spark]:
    log_file = tmp_path_factory.mktemp("spark") / "spark.log"
    with Spark(name="reshape", master="local[2]", slots=1, log_file=log_file, settings=QUICK) as spark:
        yield spark


@pytest.fixture(params=["sqlite", "kafka"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Places:
    return Places(tmp_path, request.getfixturevalue("kafka") if request.param == "kafka" else None)


@pytest.fixture
def on_sqlite(tmp_path: Path) -> Places:
    return Places(tmp_path, None)


def killed_with(driver_plan: object, steps: int, folder: Path) -> None:
    """Runs a job whose driver is killed in its middle."""
    given = pickle.dumps((driver_plan, steps, folder))
    ended = subprocess.run([sys.executable, "-c", _DRIVER], input=given, cwd=ROOT, check=False, timeout=150)
    assert ended.returncode == -signal.SIGKILL


def dying(folder: Path) -> Callable[..., list[Any]]:
    """Runs jobs whose tasks are killed: each step's first one in its middle, and the next one at its very end."""

    def run(spark: Spark, pieces: Any, work: Any, **how: Any) -> list[Any]:
        marks = folder / type(work).__name__

        def work_and_die(piece: Any, tell: Any) -> Any:
            def die_once(mark: str) -> None:
                path = Path(f"{marks}-{mark}")
                if not path.exists():
                    path.touch()
                    os.kill(os.getpid(), signal.SIGKILL)

            def deadly(done: int, of: int) -> None:
                tell(done, of)
                die_once("middle")

            done = work(piece, deadly)
            die_once("end")
            return done

        return run_batch(spark, pieces, work_and_die, **how)

    return run


def planned(places: Places, to: int, *, savepoint: str = "before") -> Plan:
    return plan_of(
        RepartitionOptions(
            reference=REFERENCE,
            log=places.log("old"),
            snapshots=places.snapshots("old"),
            to=to,
            into=places.log("new"),
            into_snapshots=places.snapshots("new"),
            savepoint=savepoint,
        )
    )


def reshaped(spark: Spark, plan: Plan, **how: Any) -> list[Made]:
    return repartition(spark, plan, told=lambda _doing, _pieces: lambda _word: None, **how)


def contents(log: str) -> list[Any]:
    """Everything in a log."""
    with closing(open_log(log, app.name)) as opened:
        return [
            (opened.start(p), list(scan(opened, p, opened.start(p))), opened.end(p)) for p in range(opened.partitions)
        ]


def digests(log: str) -> list[str]:
    """Of a replay from zero."""
    with closing(open_log(log, app.name)) as opened:
        return [replayed(opened, Codec(app), p, opened.end(p)).digest() for p in range(opened.partitions)]


# Repartition


def test_a_town_goes_on_in_other_partitions(spark: Spark, places: Places, tmp_path: Path):
    """With tasks killed in every step: what is left to do is done there, and all come to what they would have come to.

    The old log is as it was, and positions of the new one are after all of its."""
    for name in ("old", "control"):
        Town(places.log(name), places.snapshots(name), partitions=4).live(24, unhandled=5)
    before = contents(places.log("old"))
    plan = planned(places, 6)

    made = reshaped(spark, plan, run=dying(tmp_path))

    assert contents(places.log("old")) == before
    kinds = {record.kind for _, records, _ in contents(places.log("new")) for record in records}
    assert kinds == {Kind.EPOCH, Kind.COMMANDS, Kind.MESSAGES, Kind.TICK}
    assert sum(one.share.timers for one in made) > 0
    with closing(open_log(places.log("new"), app.name)) as log:
        assert (log.partitions, log.base) == (6, max(end for _, _, end in before))
        assert [log.start(partition) for partition in range(6)] == [log.base] * 6
    control = Town(places.log("control"), places.snapshots("control")).end()
    assert Town(places.log("new"), places.snapshots("new")).end() == control
    assert control["failed"]
    with pytest.raises(Misuse, match=r"There are snapshots of town in .* already, such as of partition 0"):
        reshaped(spark, plan)


def test_a_driver_that_is_killed_leaves_what_the_next_can_use(spark: Spark, on_sqlite: Places, tmp_path: Path):
    """All is made and nothing verified: nobody opens the new log meanwhile, and run again, the result is the same."""
    Town(on_sqlite.log("old"), on_sqlite.snapshots("old"), partitions=3).live(20, unhandled=3)
    plan = planned(on_sqlite, 2)
    killed_with(plan, 2, tmp_path)

    with pytest.raises(Unfinished, match="is not whole: `engram repartition` was interrupted"):
        open_log(plan.target.log, app.name)
    made = reshaped(spark, plan)
    assert reshaped(spark, plan) == made, "and once more, when all is done"
    store = FileSnapshots(Path(plan.target.snapshots), app.name)
    assert [[m.savepoint for m in store.manifests(partition)] for partition in range(2)] == [[plan.savepoint]] * 2


# Archive


def archived(spark: Spark, places: Places, folder: Path, *, trim: bool = False, **how: Any) -> Any:
    plan = ArchivePlan(
        app=app.name, log=places.log("old"), snapshots=places.snapshots("old"), to=str(folder / "archive"), trim=trim
    )
    return archive(spark, plan, 4, on_progress=how.pop("on_progress", lambda _: None), **how)


def newest_snapshots(places: Places) -> list[Manifest]:
    store = FileSnapshots(Path(places.snapshots("old")), app.name)
    return [store.manifests(partition)[0] for partition in range(4)]


def test_archive_and_log_are_one(spark: Spark, places: Places, tmp_path: Path):
    """With tasks killed: what is trimmed is read from the archive, a replay of both comes to the same digests, and a
    second run adds what is new."""
    url, joined = places.log("old"), f"{places.log('old')}?archive={tmp_path / 'archive'}"
    Town(url, places.snapshots("old"), partitions=4).live(20, turns=6)
    whole, wanted = contents(url), digests(url)
    heard: list[Progress] = []

    first = archived(spark, places, tmp_path, run=dying(tmp_path), on_progress=heard.append)
    assert [one.start for one in first] == [0] * 4
    assert [one.end for one in first] == [newest.offset for newest in newest_snapshots(places)]
    assert heard
    assert contents(url) == whole, "nothing is trimmed unless somebody asks for it"
    trimmed = archived(spark, places, tmp_path, trim=True)

    assert [one.added for one in trimmed] == [0] * 4
    assert all(one.begins > 0 for one in trimmed)
    assert [records for _, records, _ in contents(joined)] == [records for _, records, _ in whole]
    assert digests(joined) == wanted
    assert Town(joined, places.snapshots("old")).end() == Town(url, places.snapshots("old")).end()
    again = archived(spark, places, tmp_path, trim=True)
    assert sum(one.added for one in again) > 0
    assert [one.end for one in again] == [newest.offset for newest in newest_snapshots(places)]


def test_an_archive_whose_driver_is_killed_is_gone_on_with(spark: Spark, on_sqlite: Places, tmp_path: Path):
    """What was sealed stays, the rest is added, and all of it is what the log has."""
    url = on_sqlite.log("old")
    Town(url, on_sqlite.snapshots("old"), partitions=4).live(20, turns=6)
    whole = contents(url)
    plan = ArchivePlan(
        app=app.name, log=url, snapshots=on_sqlite.snapshots("old"), to=str(tmp_path / "archive"), trim=True
    )
    killed_with(plan, 0, tmp_path)

    archived(spark, on_sqlite, tmp_path, trim=True)
    joined = f"{url}?archive={tmp_path / 'archive'}"
    assert [records for _, records, _ in contents(joined)] == [records for _, records, _ in whole]
