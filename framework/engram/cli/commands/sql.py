"""`engram sql` and `engram export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from engram.cli.options import Json, LogUrl, Master, Snapshots, SparkConf, SparkOutput
from engram.cli.output import refuse_nicely

AppOrName = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:APP", help="The app, such as sample_apps.social:app; or its name, for what needs no classes."
    ),
]
At = Annotated[
    str,
    typer.Option(
        metavar="MOMENT",
        help="State as of a time, a position, a savepoint, or the newest `snapshot`; the log's `end` by default.",
    ),
]


@refuse_nicely
def sql(
    reference: AppOrName,
    statement: Annotated[
        str | None, typer.Argument(metavar="[STATEMENT]", help="In Spark's SQL; without it, a shell.")
    ] = None,
    *,
    log: LogUrl,
    snapshots: Snapshots = None,
    at: At = "",
    form: Annotated[
        Literal["table", "csv", "json", "parquet"], typer.Option("--format", help="How rows are printed or written.")
    ] = "table",
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A new file for them, instead of the screen.")
    ] = None,
    master: Master = "",
    spark_conf: SparkConf = None,
    spark_output: SparkOutput = False,
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Ask in SQL: an app's entities, read models, log, events and replies are tables."""
    from engram.cli.batch import options_beside
    from engram.cli.sql import Data, ask_sql

    data = Data(reference=reference, log=log, snapshots=snapshots, at=at)
    form = "json" if json else form
    ask_sql(data, statement, form, output, options_beside(log, master, spark_conf, output=spark_output))


@refuse_nicely
def export(
    reference: AppOrName,
    tables: Annotated[list[str], typer.Argument(metavar="TABLE...", help="As `engram sql` has them.")],
    *,
    log: LogUrl,
    to: Annotated[
        Path, typer.Option("--to", metavar="FILE", help="A new file: NAME.parquet, .csv, .json, or .db for SQLite.")
    ],
    snapshots: Snapshots = None,
    at: At = "",
    master: Master = "",
    spark_conf: SparkConf = None,
    spark_output: SparkOutput = False,
    json: Json = False,
) -> None:
    """Write tables to a file: entities, read models, log, events or replies."""
    from engram.cli.batch import options_beside
    from engram.cli.sql import Data, export_tables

    data = Data(reference=reference, log=log, snapshots=snapshots, at=at)
    export_tables(data, tables, to, options_beside(log, master, spark_conf, output=spark_output), json=json)
