"""`engram sql` and `engram export`: questions in SQL over an app's data, and tables as files."""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from engram.cli.batch import SparkOptions, batch_spark
from engram.cli.output import say, say_json, show_progress, show_table
from engram.cli.store import store_url
from engram.errors import EngramError, Misuse
from engram.log.open import absolute_url, check_log
from engram.shard.reference import resolve_app
from engram.snapshots.open import open_store
from engram.spark.files import SUFFIXES, Sheet, check_target, write_file
from engram.spark.plain import json_lines, plain
from engram.spark.problems import told_shortly
from engram.spark.tables import Tables, tables_of

if TYPE_CHECKING:
    from engram.spark.tables import Table

Form = Literal["table", "csv", "json", "parquet"]

# On a screen; files and pipes get all.
_SHOWN = 1000
# A text in quotes, which may have a semicolon in it, or a comment; or the end of a statement.
_PIECES = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"|`[^`]*`|--[^\n]*|(;)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """What is asked: an app, by MODULE:APP or its name alone, its log and snapshots, and the moment of its state."""

    reference: str
    log: str
    snapshots: str | None = None
    at: str = ""

    def tables(self) -> dict[str, Table]:
        """Raises `Misuse` when there is no such app, log or snapshots, and `Corrupt` when the log's archive is not
        whole, before any Spark is started."""
        name = resolve_app(self.reference).name if ":" in self.reference else self.reference
        check_log(self.log, name)
        store = store_url(self.log, self.snapshots) if self.snapshots else ""
        if store:
            open_store(store, name, create=False)
        return tables_of(self.reference, log=absolute_url(self.log), snapshots=store, at=self.at)


def ask_sql(data: Data, statement: str | None, form: Form, output: Path | None, spark: SparkOptions) -> None:
    """Runs one statement, or those that come from stdin, and prints what they give or writes it to a file."""
    if output is not None:
        if statement is None:
            raise Misuse("--output takes what one statement gives: write the statement after the app.")
        check_target(output)
    elif form == "parquet":
        raise Misuse("Parquet is nothing for a screen: say where with --output FILE.")
    tables = data.tables()
    with _asking(data.reference, tables, spark) as asked:
        if statement is not None:
            _answer(asked, statement, form, output)
        elif sys.stdin.isatty():
            _shell(asked, form, sorted(tables))
        else:
            for each in statements(sys.stdin.read()):
                _answer(asked, each, form, None)


def export_tables(data: Data, names: list[str], target: Path, spark: SparkOptions, *, json: bool) -> None:
    """Writes tables to one new file, of the kind that its name says."""
    form = SUFFIXES.get(target.suffix)
    if form is None:
        raise Misuse(f"{target.name} says no kind of file: end its name with {', '.join(SUFFIXES)}.")
    check_target(target)
    tables = data.tables()
    for name in names:
        if name not in tables:
            raise Misuse(f"There is no table {name}: there are {', '.join(sorted(tables))}.")
    with _asking(data.reference, tables, spark) as asked:
        with told_shortly():
            sheets = [Sheet(name, asked.frame(name), asked.unique(name)) for name in dict.fromkeys(names)]
        show_progress(f"writing {target.name} ...")
        counts = write_file(sheets, target, form)
    size = target.stat().st_size
    if json:
        say_json({"file": str(target), "bytes": size, "rows": counts})
    else:
        told = ", ".join(f"{count:,} rows of {name}" for name, count in counts.items())
        say(f"{target} has {told} ({size:,} bytes).")


@contextmanager
def _asking(reference: str, tables: dict[str, Table], options: SparkOptions) -> Iterator[Tables]:
    with batch_spark(f"sql {reference}", options) as spark:
        show_progress("")
        yield Tables(spark.session, tables)


def statements(text: str) -> list[str]:
    """The statements of a text, between semicolons."""
    ends = [found.start() for found in _PIECES.finditer(text) if found[1]]
    starts = [0, *(end + 1 for end in ends)]
    found = [text[start:end].strip() for start, end in zip(starts, [*ends, len(text)], strict=True)]
    return [each for each in found if each]


def _shell(asked: Tables, form: Form, names: list[str]) -> None:
    import readline  # noqa: F401 - gives `input` its history

    say(f"Tables: {', '.join(names)}. A statement ends with a semicolon; Ctrl-D ends the session.")
    typed = ""
    while True:
        try:
            typed += input("sql> " if not typed.strip() else "  -> ") + "\n"
        except EOFError:
            say("")
            return
        except KeyboardInterrupt:
            say("")
            typed = ""
            continue
        if not typed.rstrip().endswith(";"):
            continue
        for statement in statements(typed):
            try:
                _answer(asked, statement, form, None)
            except EngramError as problem:
                print(f"engram: {problem}", file=sys.stderr)
                break
        typed = ""


def _answer(asked: Tables, statement: str, form: Form, output: Path | None) -> None:
    with told_shortly():
        frame = asked.ask(statement)
    if output is not None:
        kind = form if form != "table" else SUFFIXES.get(output.suffix, "")
        if kind not in {"parquet", "csv", "json"}:
            raise Misuse(f"{output.name} says no kind of file: add --format csv, json or parquet.")
        count = write_file([Sheet("rows", frame)], output, kind)["rows"]
        say(f"{output} has {count:,} row{'' if count == 1 else 's'}.")
        return
    with told_shortly():
        _print(frame, form)


def _print(frame: Any, form: Form) -> None:
    if form == "json":
        for row in json_lines(frame).collect():
            say(row[0])
        return
    flat = plain(frame)
    if form == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(flat.columns)
        writer.writerows(flat.collect())
        return
    rows = flat.limit(_SHOWN + 1).collect()
    shown = [["" if value is None else value for value in row] for row in rows[:_SHOWN]]
    more = f"the first {_SHOWN:,} rows; --format csv or --output FILE gives all" if len(rows) > _SHOWN else ""
    show_table(more, flat.columns, shown)
