"""Arguments and options that several commands share, with the same names and help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

AppReference = Annotated[str, typer.Argument(metavar="MODULE:APP", help="The app, such as sample_apps.social:app")]
LogUrl = Annotated[
    str, typer.Option("--log", metavar="URL", help="The command log: sqlite:PATH or kafka://HOST:PORT/TOPIC")
]
Url = Annotated[str, typer.Option("--url", help="Where the app's gateway is.")]
Token = Annotated[
    str, typer.Option("--token", help="Who you are, where the app wants to know; by default what ENGRAM_TOKEN holds.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
JsonLines = Annotated[
    bool, typer.Option("--json", help="Print a line of JSON for each record, with all that is in it.")
]
Partition = Annotated[int | None, typer.Option(min=0, help="Only this one; all by default.")]

Positions = Annotated[list[str], typer.Argument(metavar="POSITION...", help="Where they are, such as 3:1042.0")]
SomePositions = Annotated[
    list[str] | None, typer.Argument(metavar="[POSITION...]", help="Where they are, such as 3:1042.0")
]
Every = Annotated[bool, typer.Option("--all", help="All of them, in the order of the log.")]
Baseline = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The baseline; schema.json beside the app's module by default.")
]

LogOfSnapshots = Annotated[str | None, typer.Option("--log", metavar="URL", help="The log that they are beside.")]
Snapshots = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Where the snapshots are, if not beside the log: a folder, or s3://BUCKET/PREFIX"),
]

Master = Annotated[str, typer.Option(help="Spark's master URL; all cores of this machine by default.")]
SparkConf = Annotated[list[str] | None, typer.Option("--spark-conf", metavar="NAME=VALUE", help="A setting for Spark.")]
SparkOutput = Annotated[bool, typer.Option("--spark-output", help="Let Spark's own output through.")]

GATEWAY = "http://127.0.0.1:8080"
