"""Every long job of Spark, in small, each of which can be held up in its middle: to be killed there and run again.

As a program it is a driver that runs all of them at once, for somebody to kill: `python -m tests.spark.long_jobs`.
"""

from __future__ import annotations

import csv
import pickle
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from engram.cli.rebuild import run_rebuild
from engram.cli.repartition import RepartitionOptions, plan_of
from engram.log.open import open_log
from engram.spark.archive import ArchivePlan, archive
from engram.spark.backfill import Backfill, append_plan, finish_plans, make_plan
from engram.spark.batch import run_batch
from engram.spark.files import Sheet, write_file
from engram.spark.rebuild import RebuildJob
from engram.spark.repartition import repartition
from engram.spark.shadow import ShadowJob, compare_versions
from engram.spark.spark import Spark
from engram.spark.tables import Tables, tables_of

from sample_apps.social import app as social
from tests.spark.ledger import app as ledger
from tests.spark.quick import QUICK
from tests.spark.story import SOCIAL

JOBS = ("rebuild", "repartition", "archive", "shadow", "export", "backfill")
# All tasks of a job but the first wait for it, and need a place too.
SLOTS = 3 * len(JOBS)
# The step of each job in which it is held: where something is made, and not only read.
_STEPS = {"rebuild", "_Make", "_Archive", "ShadowJob", "_Append"}


@dataclass(frozen=True, slots=True)
class Halfway:
    """Where jobs meet: while there is a file `hold` in the folder, the first task of each waits in its middle, and the
    others do not begin; if the first has nothing left to do, one of these is the one that waits."""

    folder: Path

    def hold(self) -> None:
        for mark in [path for kind in ("begun", "ended", "held") for path in self.folder.glob(f"*.{kind}")]:
            mark.unlink()
        self._held.touch()

    def release(self) -> None:
        self._held.unlink()

    def missing(self) -> list[str]:
        return [job for job in JOBS if not (self.folder / f"{job}.held").exists()]

    def run(self, name: str, spark: Spark, pieces: Sequence[Any], work: Any, **how: Any) -> list[Any]:
        """Instead of `run_batch`."""
        step = getattr(work, "__name__", type(work).__name__)
        return run_batch(spark, pieces, _Waiting(work, self, name) if step in _STEPS else work, **how)

    def wait(self, name: str) -> None:
        """In a task: once for each name, and others pass."""
        if self._held.exists():
            try:
                (self.folder / f"{name}.held").touch(exist_ok=False)
            except FileExistsError:
                return
        while self._held.exists():
            threading.Event().wait(0.05)

    def begin(self, name: str) -> bool:
        """Before a task; whether it is the first of its job. Another waits here."""
        try:
            (self.folder / f"{name}.begun").touch(exist_ok=False)
        except FileExistsError:
            while self._held.exists():
                if (self.folder / f"{name}.ended").exists():
                    (self.folder / f"{name}.held").touch()
                threading.Event().wait(0.05)
            return False
        return True

    def end(self, name: str) -> None:
        """After the first task."""
        (self.folder / f"{name}.ended").touch()

    @property
    def _held(self) -> Path:
        return self.folder / "hold"


@dataclass(frozen=True, slots=True)
class _Waiting:
    work: Any
    halfway: Halfway
    name: str

    def __call__(self, piece: Any, tell: Callable[[int, int], None]) -> Any:
        def wait(done: int, of: int) -> None:
            tell(done, of)
            self.halfway.wait(self.name)

        first = self.halfway.begin(self.name)
        done = self.work(piece, wait)
        if first:
            self.halfway.end(self.name)
        return done


class LongJobs(NamedTuple):
    """All of them: over a story of the social network that has ended with savepoint `noon`, and a source for a
    backfill. What they make is in the folder."""

    folder: Path
    story: str
    snapshots: str
    new_log: str
    filled_log: str

    @property
    def halfway(self) -> Halfway:
        return Halfway(self.folder)

    def start(self, spark: Spark, threads: ThreadPoolExecutor) -> dict[str, Future[Any]]:
        """All at once."""
        return {job: threads.submit(getattr(self, job), spark) for job in JOBS}

    # The jobs, each as its command runs it

    def rebuild(self, spark: Spark) -> Any:
        job = RebuildJob(reference=SOCIAL, log=self.story, snapshots=str(self.folder / "rebuilt"), every=10)
        return run_rebuild(spark, social, job, [0, 1], run=partial(self.halfway.run, "rebuild"))[0]

    def repartition(self, spark: Spark) -> Any:
        plan = plan_of(
            RepartitionOptions(
                reference=SOCIAL,
                log=self.story,
                snapshots=self.snapshots,
                to=3,
                into=self.new_log,
                into_snapshots=str(self.folder / "repartitioned"),
                savepoint="noon",
            )
        )
        return repartition(spark, plan, told=lambda *_: lambda _: None, run=partial(self.halfway.run, "repartition"))

    def archive(self, spark: Spark) -> Any:
        to = str(self.folder / "archive")
        plan = ArchivePlan(app=social.name, log=self.story, snapshots=self.snapshots, to=to, trim=False)
        return archive(spark, plan, 2, on_progress=lambda _: None, run=partial(self.halfway.run, "archive"))

    def shadow(self, spark: Spark) -> Any:
        run = partial(self.halfway.run, "shadow")
        return compare_versions(spark, self.shadow_job, on_progress=lambda _: None, run=run)

    @property
    def shadow_job(self) -> ShadowJob:
        with closing(open_log(self.story, social.name)) as log:
            ends = (log.end(0), log.end(1))
        apps = {"old": SOCIAL, "new": SOCIAL, "old_path": ""}
        return ShadowJob(**apps, log=self.story, snapshots="", savepoint="", ends=ends, examples=5)

    def export(self, spark: Spark) -> Any:
        tables = Tables(spark.session, tables_of(SOCIAL, log=self.story, snapshots=self.snapshots))

        def pass_on(batches: Iterator[Any]) -> Iterator[Any]:
            for batch in batches:
                yield batch
                self.halfway.wait("export")

        users = tables.frame("user").selectExpr("key", "size(following) as following")
        return write_file([Sheet("user", users.mapInArrow(pass_on, users.schema))], self.exported, "csv")

    @property
    def exported(self) -> Path:
        return self.folder / "users.csv"

    def backfill(self, spark: Spark) -> Any:
        source, run = str(self.folder / "source.csv"), partial(self.halfway.run, "backfill")
        job = Backfill(app="tests.spark.ledger:app", log=self.filled_log, source=source, plans=self.plans)
        with closing(open_log(self.filled_log, ledger.name, partitions=2, create=True)) as log:
            finish_plans(spark, job, ledger, log, on_progress=lambda _: None, run=run)
            plan = make_plan(spark, job, ledger, log, on_progress=lambda _: None)
            return append_plan(spark, job, ledger, plan, on_progress=lambda _: None, run=run)

    @property
    def plans(self) -> Path:
        return self.folder / "plans"

    def write_source(self, count: int) -> None:
        with (self.folder / "source.csv").open("w", newline="") as file:
            rows = ((f"row{n}", "add", f"key{n % 7}", n) for n in range(count))
            csv.writer(file).writerows([("id", "command", "key", "number"), *rows])


def main() -> None:
    jobs: LongJobs = pickle.load(sys.stdin.buffer)
    with (
        Spark(name="dying", master=f"local[{SLOTS}]", slots=1, log_file=jobs.folder / "1.log", settings=QUICK) as spark,
        ThreadPoolExecutor(len(JOBS)) as threads,
    ):
        for future in as_completed(jobs.start(spark, threads).values()):
            traceback.print_exception(future.exception())  # none can be done


if __name__ == "__main__":
    main()
