"""`engram rebuild`."""

from __future__ import annotations

from typing import Annotated

import typer

from engram.cli.options import AppReference, Json, LogUrl, Master, Snapshots, SparkConf, SparkOutput
from engram.cli.output import refuse_nicely


@refuse_nicely
def rebuild(
    reference: AppReference,
    log: LogUrl,
    *,
    snapshots: Snapshots = None,
    anew: Annotated[
        bool,
        typer.Option("--anew", help="This code decides what the whole log means, also what other versions handled."),
    ] = False,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Do not go on from what an interrupted run has left.")
    ] = False,
    every: Annotated[
        int, typer.Option(min=1, help="Commands of a partition between two snapshots to go on from.")
    ] = 1_000_000,
    master: Master = "",
    spark_conf: SparkConf = None,
    spark_output: SparkOutput = False,
    json: Json = False,
) -> None:
    """Make snapshots of every partition from the log alone, as a Spark job. The app must not be running."""
    from engram.cli.batch import options_beside
    from engram.cli.rebuild import RebuildOptions, rebuild_snapshots

    options = RebuildOptions(
        reference=reference,
        log=log,
        snapshots=snapshots,
        every=every,
        anew=anew,
        from_scratch=from_scratch,
        json=json,
    )
    rebuild_snapshots(options, options_beside(log, master, spark_conf, output=spark_output))
