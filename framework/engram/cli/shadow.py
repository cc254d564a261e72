"""`engram shadow`: a new version over the real log, beside the old one: a table, and Parquet to look closer."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engram.cli.batch import SparkOptions, batch_spark, progress_of
from engram.cli.output import say, say_json, show_progress, show_table
from engram.cli.restore import savepoint_of_all
from engram.cli.store import store_url
from engram.errors import Misuse, Unavailable
from engram.log.open import absolute_url, check_log
from engram.shard.reference import resolve_app_at
from engram.shard.shadow import KINDS, Difference, Kind
from engram.snapshots.open import open_store
from engram.spark.files import scratch_beside
from engram.spark.shadow import Compared, ShadowJob, compare_versions

# On the screen; all are in the report.
_SHOWN = 10
_WIDTH = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowOptions:
    old: str
    new: str
    log: str
    old_path: Path | None
    savepoint: str
    snapshots: str | None
    examples: int
    report: Path | None
    spark: SparkOptions
    json: bool


def compare(options: ShadowOptions) -> None:
    old_path = "" if options.old_path is None else str(options.old_path.expanduser().absolute())
    old, new = resolve_app_at(options.old, old_path), resolve_app_at(options.new)
    if old.name != new.name:
        raise Misuse(f"{options.old} is app {old.name} and {options.new} is {new.name}: compare versions of one app.")
    if options.report is not None:
        check_report(options.report)
    ends = tuple(check_log(options.log, old.name))
    snapshots = store_url(options.log, options.snapshots)
    if options.savepoint or options.snapshots:
        store = open_store(snapshots, old.name, create=False)
        if options.savepoint:
            savepoint_of_all(options.savepoint, len(ends), store)
    job = ShadowJob(
        old=options.old,
        new=options.new,
        old_path=old_path,
        log=absolute_url(options.log),
        snapshots=snapshots,
        savepoint=options.savepoint,
        ends=ends,
        examples=options.examples,
    )
    with batch_spark(f"shadow {old.name}", options.spark) as spark:
        found = compare_versions(spark, job, on_progress=progress_of("comparing", "records", len(ends)))
    show_progress("")
    rows = _rows(found)
    examples = [example for each in found for example in each.examples]
    if options.report is not None:
        write_report(options.report, rows, examples)
    _show(f"{old.name}: version {old.version} and version {new.version}", found, rows, examples, json=options.json)


def _rows(found: list[Compared]) -> list[dict[str, Any]]:
    """One for each kind and name, those of one kind together."""
    compared: Counter[tuple[Kind, str]] = sum((each.compared for each in found), Counter())
    different: Counter[tuple[Kind, str]] = sum((each.different for each in found), Counter())
    names = sorted(compared.keys() | different.keys(), key=lambda of: (KINDS.index(of[0]), of[1]))
    return [
        {"kind": kind, "name": name, "compared": compared[kind, name], "different": different[kind, name]}
        for kind, name in names
    ]


def _show(
    title: str, found: list[Compared], rows: list[dict[str, Any]], examples: list[Difference], *, json: bool
) -> None:
    records, foreign = sum(each.records for each in found), sum(each.foreign for each in found)
    if json:
        told = [example._asdict() for example in examples]
        say_json({"records": records, "foreign": foreign, "compared": rows, "examples": told})
        return
    show_table(
        f"{title} over {records:,} records",
        ["kind", "name", "compared", "different"],
        [[row["kind"], row["name"], f"{row['compared']:,}", f"{row['different']:,}"] for row in rows],
    )
    if foreign:
        say(f"{foreign:,} records were handled by other versions than the old one: begin after them with --from.")
    if examples:
        short = [[value[:_WIDTH] for value in example] for example in examples[:_SHOWN]]
        show_table("Examples", list(Difference._fields), short)


def check_report(folder: Path) -> None:
    """Raises `Misuse` for a place where something is, or where no folder can be."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise Misuse(f"{folder} is there already: choose another folder for the report.")
    above = next(parent for parent in folder.absolute().parents if parent.exists())
    if not above.is_dir():
        raise Misuse(f"{above} is no folder: choose another one for the report.")


def write_report(folder: Path, rows: list[dict[str, Any]], examples: list[Difference]) -> None:
    """Counts and examples as Parquet, of which there is all or nothing."""
    import pyarrow as pa
    from pyarrow import parquet

    check_report(folder)
    texts = [(name, pa.string()) for name in ("kind", "name")]
    counts = [(name, pa.int64()) for name in ("compared", "different")]
    compared = pa.Table.from_pylist(rows, pa.schema(texts + counts))
    fields = pa.schema([(name, pa.string()) for name in Difference._fields])
    differences = pa.Table.from_pylist([example._asdict() for example in examples], fields)
    try:
        folder.absolute().parent.mkdir(parents=True, exist_ok=True)
        with scratch_beside(folder) as scratch:
            made = scratch / folder.name
            made.mkdir()
            parquet.write_table(compared, made / "compared.parquet")
            parquet.write_table(differences, made / "differences.parquet")
            made.rename(folder)
    except OSError as problem:
        raise Unavailable(f"{folder} could not be written: {problem}.") from problem
