"""DataFrames as single files: Parquet, CSV, lines of JSON, and SQLite with a table for each."""

from __future__ import annotations

import csv
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from engram.errors import Misuse, Unavailable
from engram.spark.plain import json_lines, plain, storable
from engram.spark.problems import told_shortly

SUFFIXES = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".db": "sqlite"}


class Sheet(NamedTuple):
    """A DataFrame and what it is called in the file. `unique` is its key, if it has one."""

    name: str
    frame: Any
    unique: str = ""


def check_target(path: Path) -> None:
    """Raises `Misuse` for a file that is there, or cannot be: nothing is ever written over."""
    if path.exists():
        raise Misuse(f"{path} is there already: choose another name, or remove it first.")
    if not path.absolute().parent.is_dir():
        raise Misuse(f"There is no folder {path.absolute().parent}: make it first.")


def write_file(sheets: list[Sheet], path: Path, form: str) -> dict[str, int]:
    """Writes DataFrames to a new file, of which there is all or nothing; how many rows of each. More than one only to
    SQLite.

    Spark writes them beside it first, task by task, so that this process never holds more than a piece: on a cluster
    the folder must be one that all machines see.
    """
    check_target(path)
    if form != "sqlite" and len(sheets) > 1:
        raise Misuse(f"{path.name} takes one table, not {len(sheets)}: write them to a .db file, or one by one.")
    with scratch_beside(path) as folder:
        made = folder / path.name
        try:
            counts = _WRITERS[form](sheets, folder, made)
            made.rename(path)
        except OSError as problem:
            raise Unavailable(f"{path} could not be written: {problem}.") from problem
    return counts


def copy_file(source: Path, path: Path) -> None:
    """A new file with what another has, of which there is all or nothing."""
    check_target(path)
    with scratch_beside(path) as folder:
        try:
            shutil.copyfile(source, folder / path.name)
            (folder / path.name).rename(path)
        except OSError as problem:
            raise Unavailable(f"{path} could not be written: {problem}.") from problem


@contextmanager
def scratch_beside(path: Path) -> Iterator[Path]:
    """A folder for what is to be renamed to `path` once it is whole; a killed process leaves it under a name of its
    own, which is in nobody's way. Raises `Misuse` where none can be made."""
    folder = path.absolute().with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        folder.mkdir()
    except OSError as problem:
        raise Misuse(f"{path} cannot be written: {problem.strerror}.") from problem
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _batches(frame: Any, folder: Path) -> tuple[Any, Iterator[Any]]:
    """The Arrow schema, and all rows in the order of the DataFrame, in batches."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pieces = folder / "pieces"
    with told_shortly():
        frame.write.mode("overwrite").option("compression", "zstd").parquet(pieces.as_uri())
    files = [pq.ParquetFile(each) for each in sorted(pieces.glob("*.parquet"))]
    # Spark's own notes in the schema are of no use to others.
    schema = pa.schema([pa.field(field.name, field.type) for field in files[0].schema_arrow])

    def read() -> Iterator[Any]:
        for file in files:
            for batch in file.iter_batches():
                yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)

    return schema, read()


def _parquet(sheets: list[Sheet], folder: Path, path: Path) -> dict[str, int]:
    import pyarrow.parquet as pq

    (sheet,) = sheets
    schema, batches = _batches(storable(sheet.frame), folder)
    count = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for batch in batches:
            writer.write_batch(batch)
            count += len(batch)
    return {sheet.name: count}


def _csv(sheets: list[Sheet], folder: Path, path: Path) -> dict[str, int]:
    (sheet,) = sheets
    schema, batches = _batches(plain(sheet.frame), folder)
    count = 0
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(schema.names)
        for batch in batches:
            writer.writerows(zip(*(column.to_pylist() for column in batch.columns), strict=True))
            count += len(batch)
    return {sheet.name: count}


def _json(sheets: list[Sheet], folder: Path, path: Path) -> dict[str, int]:
    (sheet,) = sheets
    _, batches = _batches(json_lines(sheet.frame), folder)
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for batch in batches:
            file.writelines(f"{line}\n" for line in batch[0].to_pylist())
            count += len(batch)
    return {sheet.name: count}


def _sqlite(sheets: list[Sheet], folder: Path, path: Path) -> dict[str, int]:
    import sqlite_utils

    counts = {}
    database = sqlite_utils.Database(path)
    try:
        for sheet in sheets:
            schema, batches = _batches(plain(sheet.frame), folder)
            table = database.table(sheet.name)
            table.create({field.name: _column(field.type) for field in schema}, pk=sheet.unique or None)
            rows = (row for batch in batches for row in batch.to_pylist())
            table.insert_all(rows, batch_size=1000)
            counts[sheet.name] = table.count
    finally:
        database.close()
    return counts


def _column(of: Any) -> type:
    import pyarrow.types as t

    if t.is_integer(of) or t.is_boolean(of):
        return int
    return float if t.is_floating(of) else str


_WRITERS: Mapping[str, Callable[[list[Sheet], Path, Path], dict[str, int]]] = {
    "parquet": _parquet,
    "csv": _csv,
    "json": _json,
    "sqlite": _sqlite,
}
