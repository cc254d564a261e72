"""`engram rebuild`: snapshots of every partition from the log alone."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from engram.cli.batch import SparkOptions, batch_spark, progress_of
from engram.cli.output import say, say_json, show_progress, show_table
from engram.cli.restore import check_stopped
from engram.cli.store import store_url
from engram.errors import Misuse
from engram.log.open import absolute_url, check_log
from engram.model.app import App
from engram.model.effects import Place
from engram.shard.rebuild import Rebuilt
from engram.shard.reference import resolve_app
from engram.shard.survey import Survey
from engram.spark.batch import Run, run_batch
from engram.spark.rebuild import RebuildJob, Stretch
from engram.spark.spark import Spark


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildOptions:
    """As the command line has them."""

    reference: str
    log: str
    snapshots: str | None
    every: int
    anew: bool
    from_scratch: bool
    json: bool


def rebuild_snapshots(options: RebuildOptions, spark_options: SparkOptions) -> None:
    """Handles the whole log again, compares, and installs what came of it when all partitions are there."""
    app = resolve_app(options.reference)
    partitions = range(len(check_log(options.log, app.name)))
    job = RebuildJob(
        reference=options.reference,
        log=absolute_url(options.log),
        snapshots=store_url(options.log, options.snapshots),
        every=options.every,
        anew=options.anew,
    )
    if options.from_scratch:
        job.clear()
    started = time.monotonic()
    with batch_spark(f"rebuild {app.name}", spark_options) as spark:
        rebuilt, aside = run_rebuild(spark, app, job, partitions)
    _tell(app, rebuilt, aside, time.monotonic() - started, json=options.json)


def run_rebuild(
    spark: Spark, app: App, job: RebuildJob, partitions: Sequence[int], *, run: Run = run_batch
) -> tuple[list[Rebuilt], int]:
    """What came of each partition, and how many snapshots of the app were set aside."""
    count = len(partitions)
    surveys = run(spark, partitions, job.survey, on_progress=progress_of("reading", "records", count))
    stretches = checked(app, surveys, anew=job.anew)
    rebuilt = run(spark, stretches, job.rebuild, on_progress=progress_of("rebuilding", "records", count))
    show_progress("installing ...")
    aside = sum(run(spark, rebuilt, job.install))
    job.clear()
    return rebuilt, aside


def checked(app: App, surveys: Sequence[Survey], *, anew: bool) -> list[Stretch]:
    """What is to be rebuilt of each partition. Raises `Misuse` while the app is running; when records were handled by
    other versions of it, unless `anew`; and with that, when it has not ended cleanly."""
    versions: Counter[int] = Counter()
    for found in surveys:
        if found.owner is not None:
            check_stopped(app.name, found.partition, found.owner)
        versions += found.versions
    versions.pop(app.version, None)
    if versions and not anew:
        others = " and ".join(f"{count:,} records by version {version}" for version, count in sorted(versions.items()))
        raise Misuse(
            f"This is version {app.version} of {app.name}, and the log has {others}, which may mean something else to "
            "it. Use the code of that version; or, if this code is to decide what the whole log means, add --anew."
        )
    if not anew:
        return [Stretch(found.partition, found.end, _arrived(found.partition, surveys)) for found in surveys]
    for found in surveys:
        if found.owner is None or found.owner.ends is None:
            raise Misuse(
                f"Partition {found.partition} was not ended cleanly, so what it had sent may not all be in the log, "
                "and other code cannot tell. Start the version that ran last once more, and end it with `engram "
                "savepoint`."
            )
    return [Stretch(found.partition, found.owned_at + 1, None) for found in surveys]


def _arrived(partition: int, surveys: Sequence[Survey]) -> dict[int, Place]:
    return {each.partition: each.arrived[partition] for each in surveys if partition in each.arrived}


def _tell(app: App, rebuilt: list[Rebuilt], aside: int, seconds: float, *, json: bool) -> None:
    commands = sum(each.commands for each in rebuilt)
    rows = [
        {
            "partition": each.partition,
            "offset": each.offset,
            "left": each.left,
            "commands": each.commands,
            "entities": each.entities,
            "digest": each.digest,
            "begun": each.begun,
            "compared": [{"offset": one.offset, "problem": one.problem} for one in each.compared],
        }
        for each in rebuilt
    ]
    if json:
        say_json({"app": app.name, "seconds": round(seconds, 3), "aside": aside, "partitions": rows})
        return
    shown = [
        [r.partition, f"{r.offset:,}", f"{r.commands:,}", f"{r.entities:,}", r.digest[:16], _same(r)] for r in rebuilt
    ]
    columns = ["partition", "record", "commands", "entities", "digest", "the app's own snapshots"]
    show_table(f"{app.name}: {commands:,} commands handled in {seconds:.1f} s", columns, shown)
    left = sum(each.left for each in rebuilt)
    if left:
        say(
            f"{left:,} records are left to the next start: what they have sent is not all in the log yet, because "
            "their owner was killed."
        )
    if aside:
        say(f"{aside:,} snapshots of the app were set aside: manifests that end in .aside; nothing was deleted.")


def _same(rebuilt: Rebuilt) -> str:
    same = sum(not each.problem for each in rebuilt.compared)
    damaged = len(rebuilt.compared) - same
    return f"{same} the same" + (f", {damaged} cannot be read" if damaged else "")
