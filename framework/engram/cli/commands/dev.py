"""`engram dev`."""

from __future__ import annotations

from typing import Annotated

import typer

from engram.cli.options import Json
from engram.cli.output import refuse_nicely

group = typer.Typer(help="What an app needs around it while it is written.", no_args_is_help=True)


@group.command("kafka")
@refuse_nicely
def kafka(
    *,
    brokers: Annotated[int, typer.Option(min=1, max=9, help="How many; with three, one may be lost.")] = 1,
    json: Json = False,
) -> None:
    """Run Kafka on loopback until Ctrl-C, with data that is thrown away."""
    from engram.cli.dev import run_kafka

    run_kafka(brokers, json=json)
