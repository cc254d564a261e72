"""`engram backfill`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from engram.cli.options import AppReference, Json, LogUrl, Master, SparkConf, SparkOutput
from engram.cli.output import refuse_nicely


@refuse_nicely
def backfill(
    reference: AppReference,
    log: LogUrl,
    *,
    source: Annotated[
        str,
        typer.Option("--from", metavar="SOURCE", help="Parquet, CSV or JSON lines: a file or a folder; or table:NAME"),
    ],
    format_: Annotated[
        Literal["", "parquet", "csv", "json"], typer.Option("--format", help="What it is, if its name does not say.")
    ] = "",
    order: Annotated[
        str, typer.Option(metavar="COLUMN", help="Add the rows in this order; by default in that of the files.")
    ] = "",
    bad: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where bad rows go, with the reason; beside the log by default.")
    ] = None,
    plans: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Where plans and ids are kept, for all executors; beside the log by default."
        ),
    ] = None,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="Make a new log of so many; an existing one is checked against it.")
    ] = None,
    master: Master = "",
    spark_conf: SparkConf = None,
    spark_output: SparkOutput = False,
    json: Json = False,
) -> None:
    """Add commands from a table to the log, in bulk. Run again, it adds nothing twice: each row has an id."""
    from engram.cli.backfill import BackfillOptions, add_commands
    from engram.cli.batch import options_beside

    add_commands(
        BackfillOptions(
            reference=reference,
            log=log,
            source=source,
            format=format_,
            order=order,
            bad=bad,
            plans=plans,
            partitions=partitions,
            spark=options_beside(log, master, spark_conf, output=spark_output),
            json=json,
        )
    )
