"""`engram backfill`: a table of commands into the log, as Spark jobs."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from engram.cli.batch import SparkOptions, batch_spark, progress_of
from engram.cli.output import say_json, show_progress, show_table
from engram.errors import Misuse
from engram.log.open import absolute_url, folder_beside, open_log
from engram.shard.reference import resolve_app
from engram.spark.backfill import Added, Backfill, append_plan, finish_plans, make_plan
from engram.spark.files import check_target, copy_file
from engram.spark.progress import Progress
from engram.spark.source import TABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillOptions:
    reference: str
    log: str
    source: str
    format: str
    order: str
    bad: Path | None
    plans: Path | None
    partitions: int | None
    spark: SparkOptions
    json: bool


def add_commands(options: BackfillOptions) -> None:
    """Raises `Misuse` at the end if there were bad rows; the others are in the log then."""
    app = resolve_app(options.reference)
    if not (options.source.startswith(TABLE) or Path(options.source).expanduser().exists()):
        raise Misuse(f"There is nothing at {options.source}: --from takes a file, a folder, or {TABLE}NAME.")
    if options.bad is not None:
        check_target(options.bad)
    beside = folder_beside(options.log)
    job = Backfill(
        app=options.reference,
        log=absolute_url(options.log),
        source=options.source,
        plans=(options.plans or Path(f"{beside}-backfill")).expanduser().absolute(),
        format=options.format,
        order=options.order,
    )
    create = options.partitions is not None
    with (
        closing(open_log(options.log, app.name, partitions=options.partitions, create=create)) as log,
        batch_spark(f"backfill {app.name}", options.spark) as spark,
    ):
        appending = progress_of("appending", "commands", log.partitions)
        finished = finish_plans(spark, job, app, log, on_progress=appending)
        started = time.monotonic()
        plan = make_plan(spark, job, app, log, on_progress=_show_rows())
        planned = time.monotonic()
        added = append_plan(spark, job, app, plan, on_progress=appending)
        seconds = planned - started, time.monotonic() - planned
        _report(app.name, finished, added, seconds, json=options.json)
    if added.bad:
        if options.bad is not None:
            copy_file(added.bad_rows, options.bad)
        where = options.bad or added.bad_rows
        raise Misuse(f"{added.bad:,} rows of {options.source} are bad and not in the log: the reasons are in {where}.")


def _report(app: str, finished: list[Added], added: Added, seconds: tuple[float, float], *, json: bool) -> None:
    """`seconds` are those of planning and of appending."""
    show_progress("")
    figures = {
        "appended": added.appended,
        "finished": sum(before.appended for before in finished),
        "known": added.known,
        "bad": added.bad,
        "planning_s": round(seconds[0], 3),
        "appending_s": round(seconds[1], 3),
    }
    if json:
        say_json({"app": app, **figures})
        return
    meanings = {
        "appended": "new commands in the log",
        "finished": "commands of earlier runs that had not ended",
        "known": "rows that are in the log already, or twice in the source",
        "bad": "rows that are no commands of this app",
        "planning_s": "seconds to check and pack the rows",
        "appending_s": "seconds to append them",
    }
    rows = [[meanings[name], f"{value:,}"] for name, value in figures.items()]
    rate = added.appended / max(seconds[1], 0.001)
    show_table(f"{app}: {added.appended:,} commands added, {rate:,.0f}/s while appending", ["what", "how many"], rows)


def _show_rows() -> Callable[[Progress], None]:
    read: dict[int, int] = {}

    def show(word: Progress) -> None:
        read[word.piece] = word.done
        show_progress(f"checking: {sum(read.values()):,} rows")

    return show
