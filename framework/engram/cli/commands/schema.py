"""`engram schema`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from engram.cli.options import AppReference, Baseline, Json
from engram.cli.output import refuse_nicely

group = typer.Typer(help="The shapes of an app's types, against those that were committed.", no_args_is_help=True)


@group.command("record")
@refuse_nicely
def record(
    reference: AppReference,
    *,
    baseline: Baseline = None,
    accept: Annotated[
        bool, typer.Option("--accept", help="Also what `engram schema check` refuses: nothing that counts has it.")
    ] = False,
) -> None:
    """Write the baseline: the version and shape of every type of an app. Commit it."""
    from engram.cli.schema import record_schema

    record_schema(reference, baseline, accept=accept)


@group.command("check")
@refuse_nicely
def check(
    reference: AppReference,
    *,
    baseline: Baseline = None,
    log: Annotated[
        str | None, typer.Option("--log", metavar="URL", help="Say how many of its records would be affected.")
    ] = None,
    snapshots: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="A folder or URL of snapshots: say how many of their entities would be affected."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Compare an app with its baseline; exit code 2 when a shape changed without a new version."""
    from engram.cli.schema import check_schema

    check_schema(reference, baseline, log=log, snapshots=snapshots, json=json)


@group.command("draft")
@refuse_nicely
def draft(
    reference: AppReference,
    name: Annotated[str, typer.Argument(metavar="TYPE", help="Such as user, entity:user or User.")],
    *,
    baseline: Baseline = None,
    output: Annotated[Path | None, typer.Option(help="A new file for it, instead of printing it.")] = None,
) -> None:
    """Draft an upcaster from the baseline's version of a type to the code's, with its test."""
    from engram.cli.schema import draft_upcaster

    draft_upcaster(reference, name, baseline, output)
