"""`engram archive`."""

from __future__ import annotations

from typing import Annotated

import typer

from engram.cli.options import AppReference, Json, LogUrl, Master, Snapshots, SparkConf, SparkOutput
from engram.cli.output import refuse_nicely


@refuse_nicely
def archive(
    reference: AppReference,
    log: LogUrl,
    *,
    to: Annotated[str, typer.Option(metavar="URL", help="The archive: a folder, or s3://BUCKET/PREFIX")],
    trim: Annotated[
        bool,
        typer.Option("--trim", help="Then remove from the log what is archived and no kept snapshot needs, for ever."),
    ] = False,
    snapshots: Snapshots = None,
    master: Master = "",
    spark_conf: SparkConf = None,
    spark_output: SparkOutput = False,
    json: Json = False,
) -> None:
    """Write records that are older than the snapshots to Parquet, sealed, as a Spark job; the app may be running."""
    from pathlib import Path

    from engram.cli.archive import archive_log
    from engram.cli.batch import SparkOptions
    from engram.log.open import folder_beside

    spark = SparkOptions(
        master=master,
        conf=tuple(spark_conf or ()),
        output=spark_output,
        log_file=Path(f"{folder_beside(log)}-spark.log"),
    )
    archive_log(reference, log, to, snapshots, spark, trim=trim, json=json)
