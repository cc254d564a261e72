"""`engram log`."""

from __future__ import annotations

from typing import Annotated

import typer

from engram.cli.options import AppReference, Json, JsonLines, LogUrl, Partition
from engram.cli.output import refuse_nicely

group = typer.Typer(help="The records of a log: see them, follow them, copy them.", no_args_is_help=True)


@group.command("show")
@refuse_nicely
def show(
    reference: AppReference,
    log: LogUrl,
    *,
    partition: Partition = None,
    start: Annotated[
        int, typer.Option("--from", metavar="OFFSET", help="The first record's offset; -20 is 20 before the end.")
    ] = 0,
    limit: Annotated[int, typer.Option(min=1, help="How many records.")] = 20,
    json: JsonLines = False,
) -> None:
    """Show records of a log: their positions, times and writers, and the commands in them."""
    from engram.cli.log import show_log

    show_log(reference, log, partition=partition, start=start, limit=limit, json=json)


@group.command("tail")
@refuse_nicely
def tail(
    reference: AppReference,
    log: LogUrl,
    *,
    partition: Partition = None,
    from_start: Annotated[bool, typer.Option("--from-start", help="First, what is there already.")] = False,
    json: JsonLines = False,
) -> None:
    """Show records of a log as they are appended, until Ctrl-C."""
    from engram.cli.log import tail_log

    tail_log(reference, log, partition=partition, from_start=from_start, json=json)


@group.command("copy")
@refuse_nicely
def copy(
    reference: AppReference,
    source: Annotated[str, typer.Argument(metavar="FROM_URL", help="The log to copy: sqlite:PATH or kafka://...")],
    target: Annotated[str, typer.Argument(metavar="TO_URL", help="Where to; a log there must be empty.")],
    *,
    json: Json = False,
) -> None:
    """Copy a whole log, from SQLite to Kafka or back, and compare the two by replaying both."""
    from engram.cli.copy import copy_and_compare

    copy_and_compare(reference, source, target, json=json)
