"""`engram repartition`."""

from __future__ import annotations

from typing import Annotated

import typer

from engram.cli.options import AppReference, Json, LogUrl, Master, Snapshots, SparkConf, SparkOutput
from engram.cli.output import refuse_nicely


@refuse_nicely
def repartition(
    reference: AppReference,
    log: LogUrl,
    *,
    to: Annotated[int, typer.Option(metavar="N", help="How many partitions the new log has.")],
    into: Annotated[str, typer.Option(metavar="URL", help="The new log, which must not be there yet.")],
    from_savepoint: Annotated[
        str, typer.Option("--from", metavar="SAVEPOINT", help="What to begin with; the newest snapshots by default.")
    ] = "",
    snapshots: Snapshots = None,
    into_snapshots: Annotated[
        str | None, typer.Option(metavar="URL", help="Where the new snapshots go; beside the new log by default.")
    ] = None,
    master: Master = "",
    spark_conf: SparkConf = None,
    spark_output: SparkOutput = False,
    json: Json = False,
) -> None:
    """Make a new log with another number of partitions from a stopped app's snapshots, as a Spark job."""
    from pathlib import Path

    from engram.cli.batch import SparkOptions
    from engram.cli.repartition import RepartitionOptions, repartition_log
    from engram.log.open import folder_beside

    repartition_log(
        RepartitionOptions(
            reference=reference,
            log=log,
            to=to,
            into=into,
            savepoint=from_savepoint,
            snapshots=snapshots,
            into_snapshots=into_snapshots,
            json=json,
        ),
        SparkOptions(
            master=master,
            conf=tuple(spark_conf or ()),
            output=spark_output,
            log_file=Path(f"{folder_beside(into)}-spark.log"),
        ),
    )
