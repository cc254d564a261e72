"""Commands from a table into the log, in bulk, each once however often it is tried.

Two steps. A **plan** holds the records that are to be appended: rows that were checked, without those whose ids are in
an earlier plan. It is sealed when it is whole, and then **appended**. A run that finds a sealed plan which is not done
ends it first; so whatever is killed, and wherever, the next run goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from engram.clock import system_clock
from engram.codec.record import CommandsHeader, Kind
from engram.errors import Misuse
from engram.log.base import READ_BYTES, RECORD_COMMANDS, Entry, Log
from engram.log.open import open_log
from engram.log.scan import scan
from engram.model.app import App
from engram.spark.batch import Run, run_batch, spark_problems
from engram.spark.packing import CHECKED, KNOWN, PACKED, Check, Pack
from engram.spark.plan import Plan, Planned, Seal
from engram.spark.progress import Progress, ProgressListener, Tell
from engram.spark.rows import BAD
from engram.spark.source import read_source
from engram.spark.spark import Spark

# Records of one append: enough that the disk's sync is shared by tens of thousands of commands.
_RECORDS_AT_ONCE = 32

OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """What is to be added, and where. `app` and `log` are as executors find them; `plans` is a folder that they share
    with the driver."""

    app: str
    log: str
    source: str
    plans: Path
    format: str = ""
    order: str = ""


class Added(NamedTuple):
    """What a plan came to: `appended` now, `before` by earlier runs of it, rows of earlier plans, and bad ones."""

    appended: int
    before: int
    known: int
    bad: int
    bad_rows: Path


def finish_plans(
    spark: Spark, job: Backfill, app: App, log: Log, *, on_progress: OnProgress, run: Run = run_batch
) -> list[Added]:
    """Appends what earlier runs have planned and not ended. Raises `Misuse` if they were for another log."""
    plans = Plan.sealed_in(job.plans)
    for plan in plans:
        _check_log(plan, app, log)
    unfinished = [plan for plan in plans if not plan.is_done]
    return [append_plan(spark, job, app, plan, on_progress=on_progress, run=run) for plan in unfinished]


def make_plan(spark: Spark, job: Backfill, app: App, log: Log, *, on_progress: OnProgress) -> Plan:
    """Reads the source and seals a plan of what is new in it."""
    session = spark.session
    plan = Plan.new(job.plans)
    with spark_problems():
        rows = read_source(session, job.source, format_=job.format, order=job.order, app=app)
    with closing(ProgressListener(on_progress, host=spark.host)) as listener, spark_problems():
        check = Check(app=job.app, partitions=log.partitions, path=spark.settings.path, door=listener.door)
        rank = rows.schema["rank"].dataType.simpleString()
        place = f"rank {rank}, file string, block bigint, row bigint"
        checked = _marked(session, rows, job.plans).mapInArrow(check, f"{CHECKED}, {place}")
        ordered = checked.repartition(log.partitions, "partition").sortWithinPartitions(
            "partition", "rank", "file", "block", "row"
        )
        plan.write(ordered.mapInArrow(Pack(session=plan.name), PACKED))
    counts = plan.counts()
    _write_bad_rows(plan)
    plan.seal(
        Seal(
            app=app.name,
            partitions=log.partitions,
            source=job.source,
            ends=[log.end(partition) for partition in range(log.partitions)],
            commands=[counts.get(partition, 0) for partition in range(log.partitions)],
            bad=counts.get(BAD, 0),
            known=counts.get(KNOWN, 0),
        )
    )
    return plan


def append_plan(
    spark: Spark, job: Backfill, app: App, plan: Plan, *, on_progress: OnProgress, run: Run = run_batch
) -> Added:
    """Appends what is not in the log yet of a plan. Run again, also beside a run of it, it has the same effect."""
    seal = plan.read_seal()
    pieces = [partition for partition, count in enumerate(seal.commands) if count]
    work = _Append(job.log, app.name, plan, seal)
    appended = sum(run(spark, pieces, work, on_progress=on_progress))
    plan.mark_done()
    return Added(appended, sum(seal.commands) - appended, seal.known, seal.bad, plan.bad_rows)


def _check_log(plan: Plan, app: App, log: Log) -> None:
    """A log that was made anew has nothing of what earlier plans have added, and they would leave those rows out."""
    seal = plan.read_seal()
    if (seal.app, seal.partitions) != (app.name, log.partitions):
        raise Misuse(
            f"{plan.folder} was planned for {seal.app} with {seal.partitions} partitions, and the log is of {app.name} "
            f"with {log.partitions}: use the log that it was made for, or another --plans folder."
        )
    for partition, count in enumerate(seal.commands):
        least = seal.ends[partition] + (-(-count // RECORD_COMMANDS) if plan.is_done else 0)
        if log.end(partition) < least:
            raise Misuse(
                f"{plan.folder} says that partition {partition} of the log has at least {least} records, but it has "
                f"{log.end(partition)}: the log was made anew, or is an older copy. Use another --plans folder."
            )


@dataclass(frozen=True, slots=True)
class _Append:
    """Runs in an executor, for one partition: how many commands it has appended."""

    log: str
    app: str
    plan: Plan
    seal: Seal

    def __call__(self, partition: int, tell: Tell) -> int:
        of = self.plan.count(partition)
        with closing(open_log(self.log, self.app)) as log:
            last = self._last_sequence(log, partition)
            done = last + 1
            for some in _together(self.plan.records(partition, after=last)):
                time = system_clock()
                log.append([Entry(partition, Kind.COMMANDS, time, planned.payload) for planned in some])
                done += sum(planned.count for planned in some)
                tell(done, of)
        return done - last - 1

    def _last_sequence(self, log: Log, partition: int) -> int:
        """How far an earlier run has come, by the log itself."""
        last = -1
        mark = f'"{self.plan.name}"'.encode()
        for record in scan(log, partition, self.seal.ends[partition]):
            head = record.payload.partition(b"\n")[0]
            if record.kind is Kind.COMMANDS and mark in head:
                last = max(last, CommandsHeader.read(head).sequence[-1])
        return last


def _together(records: Iterator[Planned]) -> Iterator[list[Planned]]:
    some: list[Planned] = []
    size = 0
    for record in records:
        if some and (len(some) == _RECORDS_AT_ONCE or size + len(record.payload) > READ_BYTES):
            yield some
            some, size = [], 0
        some.append(record)
        size += len(record.payload)
    if some:
        yield some


def _marked(session: Any, rows: Any, plans: Path) -> Any:
    """With `known`: whether the id is in an earlier plan, or in an earlier row."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    known = f.lit(False)
    if not rows.where("id is not null").groupBy("id").count().where("count > 1").isEmpty():
        first = Window.partitionBy("id").orderBy("rank", "file", "block", "row")
        rows = rows.withColumn("nth", f.row_number().over(first))
        known = (f.col("nth") > 1) & f.col("id").isNotNull()
    earlier = [str(plan.data) for plan in Plan.sealed_in(plans) if sum(plan.read_seal().commands)]
    if earlier:
        # Several folders: their partitions are nobody's business here.
        every = session.read.schema("ids array<string>").option("recursiveFileLookup", "true").parquet(*earlier)
        ids = every.select(f.explode("ids").alias("id"), f.lit(True).alias("earlier"))
        rows = rows.join(ids, "id", "left")
        known |= f.coalesce(f.col("earlier"), f.lit(False))
    return rows.withColumn("known", known)


def _write_bad_rows(plan: Plan) -> None:
    """A line of JSON for each, with the reason."""
    lines = [planned.payload for planned in plan.records(BAD)]
    if lines:
        plan.bad_rows.write_bytes(b"\n".join(lines) + b"\n")
