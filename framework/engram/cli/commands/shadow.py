"""`engram shadow`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from engram.cli.options import Json, LogUrl, Master, Snapshots, SparkConf, SparkOutput
from engram.cli.output import refuse_nicely


@refuse_nicely
def shadow(
    old: Annotated[str, typer.Argument(metavar="OLD:APP", help="The version that has handled the log.")],
    new: Annotated[str, typer.Argument(metavar="NEW:APP", help="The version to try on it.")],
    log: LogUrl,
    *,
    old_path: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where the old version's code is, if its modules have the same names."),
    ] = None,
    savepoint: Annotated[
        str, typer.Option("--from", metavar="SAVEPOINT", help="Begin there; at the beginning of the log by default.")
    ] = "",
    snapshots: Snapshots = None,
    examples: Annotated[int, typer.Option(min=1, help="How many of each kind are kept, of each partition.")] = 20,
    report: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write all counts and examples there, as Parquet.")
    ] = None,
    master: Master = "",
    spark_conf: SparkConf = None,
    spark_output: SparkOutput = False,
    json: Json = False,
) -> None:
    """Try a new version of an app on the real log: which replies, events, states and answers would be others?"""
    from engram.cli.batch import options_beside
    from engram.cli.shadow import ShadowOptions, compare

    compare(
        ShadowOptions(
            old=old,
            new=new,
            log=log,
            old_path=old_path,
            savepoint=savepoint,
            snapshots=snapshots,
            examples=examples,
            report=report,
            spark=options_beside(log, master, spark_conf, output=spark_output),
            json=json,
        )
    )
