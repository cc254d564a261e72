"""A table of commands, as files or tables of Spark hold it, with the columns that a backfill needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engram.errors import Misuse
from engram.model.app import App
from engram.spark.problems import told_shortly

TABLE = "table:"
_FORMATS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}
_OWN = ("id", "command", "key", "body", "version")
# The order of rows in their files: the file, the place of a piece in it, and the row in that.
PLACE = ("file", "block", "row")


def read_source(session: Any, source: str, *, format_: str, order: str, app: App) -> Any:
    """A DataFrame with `id`, `command`, `key`, `body`, `version`, and the columns of `PLACE`, by which it is ordered.

    `source` is a file or folder of Parquet, CSV (with a header) or JSON lines, or `table:NAME`. Without a column `body`
    the other columns are the commands' fields; null is a field that is left out. `order` is a column to order by; it is
    a field too if a command of `app` has one of that name.
    """
    frame = _with_place(_read(session, source, format_))
    names = [name for name in frame.columns if name not in PLACE]
    missing = [name for name in ("id", "command", "key") if name not in names]
    if missing:
        raise Misuse(
            f"{source} has no column {' or '.join(missing)}: each row needs all three. It has: {', '.join(names)}."
        )
    if order and order not in names:
        raise Misuse(f"{source} has no column {order!r} to order by (it has: {', '.join(names)}).")
    of_commands = {field for command in app.commands.values() for field in command.model_fields}
    fields = [name for name in names if name not in _OWN and (name != order or name in of_commands)]
    return _select(frame, names, fields, order)


def _select(frame: Any, names: list[str], fields: list[str], order: str) -> Any:
    from pyspark.sql import functions as f

    def text(name: str) -> Any:
        return f.col(f"`{name}`").cast("string") if name in names else f.lit(None).cast("string")

    if "body" in names:
        kind = dict(frame.dtypes)["body"]
        body = f.to_json("body") if kind.startswith(("struct", "map", "variant")) else text("body")
    else:
        body = f.to_json(f.struct(*(f.col(f"`{name}`") for name in fields))) if fields else f.lit("{}")
    columns = [text(name).alias(name) for name in ("id", "command", "key", "version")]
    ordering = f.col(f"`{order}`").alias("rank") if order else f.lit(0).alias("rank")
    return frame.select(*columns, body.alias("body"), ordering, *PLACE)


def _read(session: Any, source: str, format_: str) -> Any:
    if source.startswith(TABLE):
        try:
            with told_shortly():
                return session.table(source.removeprefix(TABLE))
        except Misuse as problem:
            raise Misuse(f"{source} cannot be read: {problem}") from problem
    path = Path(source).expanduser()
    kind = format_ or _format_of(path, source)
    reader = session.read.format(kind)
    if kind == "csv":
        reader = reader.option("header", "true").option(
            "escape", '"'
        )  # quotes in quotes are doubled, as others write it
    return reader.load(str(path.absolute()))


def _format_of(path: Path, source: str) -> str:
    if not path.exists():
        raise Misuse(f"There is nothing at {path}: --from takes a file, a folder, or {TABLE}NAME.")
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.suffix in _FORMATS]
    kinds = {_FORMATS[file.suffix] for file in files if file.suffix in _FORMATS}
    if len(kinds) != 1:
        found = " and ".join(sorted(kinds)) or "no .parquet, .csv or .jsonl"
        raise Misuse(f"{source} holds {found}: say what it is with --format parquet, csv or json.")
    return kinds.pop()


def _with_place(frame: Any) -> Any:
    from pyspark.sql import functions as f

    row = f.monotonically_increasing_id()
    try:
        with told_shortly():
            return frame.select(
                "*",
                f.col("_metadata.file_path").alias("file"),
                f.col("_metadata.file_block_start").alias("block"),
                row.alias("row"),
            )
    except Misuse:  # not made of files
        return frame.select("*", f.lit("").alias("file"), f.lit(0).cast("bigint").alias("block"), row.alias("row"))
