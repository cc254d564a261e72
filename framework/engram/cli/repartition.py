"""`engram repartition`: the same app, from the same state, on a log with another number of partitions."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from engram.cli.batch import SparkOptions, batch_spark, progress_of
from engram.cli.output import say, say_json, show_progress, show_table
from engram.cli.restore import handled_at_rest, savepoint_of_all
from engram.cli.store import store_url
from engram.errors import Misuse
from engram.image.digest import as_text
from engram.log.base import Log
from engram.log.open import absolute_url, open_log
from engram.model.app import App
from engram.reshape.plan import Place, Plan, check_count, check_target
from engram.shard.reference import resolve_app
from engram.snapshots.base import SnapshotStore
from engram.snapshots.manifest import Manifest
from engram.snapshots.open import open_store
from engram.spark.progress import Progress
from engram.spark.repartition import Made, repartition

# What each step of the job counts.
_NOUNS = {"surveying": "shares", "making": "steps", "verifying": "steps"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RepartitionOptions:
    """As the command line has them."""

    reference: str
    log: str
    to: int
    into: str
    savepoint: str = ""
    snapshots: str | None = None
    into_snapshots: str | None = None
    json: bool = False


def repartition_log(options: RepartitionOptions, spark: SparkOptions) -> None:
    """Makes the new log, and says what is in it. Nothing is done if anything is not right."""
    plan = plan_of(options)
    check_target(plan)
    plan.target_log().close()  # here too, so that nobody waits for Spark only to hear that something else is there
    started = time.monotonic()
    with batch_spark(f"repartition {plan.app}", spark) as running:
        made = repartition(running, plan, told=told)
    _tell(plan, made, time.monotonic() - started, json=options.json)


def told(doing: str, pieces: int) -> Callable[[Progress], None]:
    return progress_of(doing, _NOUNS[doing], pieces)


def plan_of(options: RepartitionOptions) -> Plan:
    """What is to be done. Raises `Misuse` when the app runs, was not ended cleanly, or the number is not right."""
    app = resolve_app(options.reference)
    source = Place(log=absolute_url(options.log), snapshots=store_url(options.log, options.snapshots))
    target = Place(log=absolute_url(options.into), snapshots=store_url(options.into, options.into_snapshots))
    with closing(open_log(source.log, app.name)) as log:
        check_count(log.partitions, options.to)
        store = open_store(source.snapshots, app.name, create=False)
        manifests = _manifests(options.savepoint, app, log, store)
        ends = tuple(log.end(partition) for partition in range(log.partitions))
    show_progress("")
    versions = [manifest.app_version for manifest in manifests if manifest is not None]
    return Plan(
        reference=options.reference,
        app=app.name,
        source=source,
        target=target,
        partitions=len(ends),
        to=options.to,
        manifests=manifests,
        ends=ends,
        version=max(versions, default=app.version),
    )


def _manifests(savepoint: str, app: App, log: Log, store: SnapshotStore) -> tuple[Manifest | None, ...]:
    """The snapshots to begin with: all that was ever handled is in them."""
    partitions = range(log.partitions)
    chosen: list[Manifest | None] = [next(iter(store.manifests(partition)), None) for partition in partitions]
    if savepoint:
        chosen = [*savepoint_of_all(savepoint, log.partitions, store)]
    for partition, manifest in zip(partitions, chosen, strict=True):
        show_progress(f"checking: partition {partition}")
        handled = handled_at_rest(log, partition, manifest)
        if handled:
            after = f"after savepoint {savepoint}" if savepoint else "after its last snapshot"
            version = max(handled)
            raise Misuse(
                f"{handled.total():,} records of partition {partition} were handled {after}: what they led to is in no "
                f"snapshot. Start version {version} of {app.name} once more, end it with `engram savepoint NAME`, and "
                "begin with that."
            )
    return tuple(chosen)


def _tell(plan: Plan, made: list[Made], seconds: float, *, json: bool) -> None:
    show_progress("")
    rows = [
        {
            "partition": one.partition,
            "records": one.records,
            **{name: value for name, value in one.share._asdict().items() if name != "digest"},
            "digest": as_text(one.share.digest),
        }
        for one in made
    ]
    if json:
        about = {"app": plan.app, "from": plan.partitions, "to": plan.to, "base": plan.base, "log": plan.target.log}
        say_json({**about, "savepoint": plan.savepoint, "seconds": round(seconds, 3), "partitions": rows})
        return
    columns = ["partition", "entities", "timers", "failed", "unhandled", "digest"]
    shown = [[f"{row[c]:,}" if isinstance(row[c], int) else str(row[c])[:16] for c in columns] for row in rows]
    show_table(f"{plan.app}: {plan.partitions} partitions became {plan.to} in {seconds:.1f} s", columns, shown)
    say(
        f"The new log is whole and verified: {plan.target.log}, with snapshots in {plan.target.snapshots}. Its "
        f"positions begin at record {plan.base:,}. The old log is as it was: start the app on the new one, and remove "
        "the old one when nobody needs its history."
    )
