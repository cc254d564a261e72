"""`engram archive`: old records to Parquet, and on request out of the log."""

from __future__ import annotations

import time

from engram.cli.batch import SparkOptions, batch_spark, progress_of
from engram.cli.output import say, say_json, show_progress, show_table
from engram.cli.store import store_url
from engram.log.open import absolute_url, without_archive
from engram.shard.reference import resolve_app
from engram.snapshots.open import absolute_store
from engram.spark.archive import Archived, ArchivePlan, archive, check_places


def archive_log(
    reference: str, log: str, to: str, snapshots: str | None, spark: SparkOptions, *, trim: bool, json: bool
) -> None:
    """Archives what is older than the snapshots, and says what the archive has."""
    app = resolve_app(reference)
    url = absolute_url(without_archive(log)[0])
    plan = ArchivePlan(app=app.name, log=url, snapshots=store_url(log, snapshots), to=absolute_store(to), trim=trim)
    partitions = check_places(plan)
    started = time.monotonic()
    with batch_spark(f"archive {app.name}", spark) as running:
        done = archive(running, plan, partitions, on_progress=progress_of("archiving", "records", partitions))
    _tell(plan, done, time.monotonic() - started, json=json)


def _tell(plan: ArchivePlan, done: list[Archived], seconds: float, *, json: bool) -> None:
    show_progress("")
    rows = [one._asdict() for one in done]
    if json:
        say_json({"app": plan.app, "archive": plan.to, "seconds": round(seconds, 3), "partitions": rows})
        return
    columns = ["partition", "start", "end", "added", "bytes", "begins"]
    title = f"{plan.app}: {sum(one.added for one in done):,} records archived in {seconds:.1f} s"
    show_table(title, columns, [[f"{row[column]:,}" for column in columns] for row in rows])
    joined = f"{plan.log}{'&' if '?' in plan.log else '?'}archive={plan.to}"
    if any(one.begins > one.start for one in done):
        say(f"The log begins where its first kept snapshot needs it. To read all of it: --log '{joined}'")
    else:
        say("The log has all of it still: --trim removes what no kept snapshot needs.")
