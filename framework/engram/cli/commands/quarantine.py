"""`engram quarantine`."""

from __future__ import annotations

from typing import Annotated

import typer

from engram.cli.options import GATEWAY, Every, Json, Positions, SomePositions, Url
from engram.cli.output import refuse_nicely

group = typer.Typer(
    help="Commands of a running app that failed: see them, retry them, drop them.", no_args_is_help=True
)


@group.command("list")
@refuse_nicely
def listed(
    *,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many, the newest first.")] = 100,
    url: Url = GATEWAY,
    json: Json = False,
) -> None:
    """Show what failed: which command, for whom, when, how often, and why."""
    from engram.cli.quarantine import Quarantine, list_failed

    list_failed(Quarantine(url, hint=_hint(url)), limit=limit, json=json)


@group.command("show")
@refuse_nicely
def show(positions: Positions, *, url: Url = GATEWAY, json: Json = False) -> None:
    """Show failed commands with their fields and tracebacks."""
    from engram.cli.quarantine import Quarantine, show_failed

    show_failed(Quarantine(url, hint=_hint(url)), positions, json=json)


@group.command("retry")
@refuse_nicely
def retry(positions: SomePositions = None, *, every: Every = False, url: Url = GATEWAY, json: Json = False) -> None:
    """Send failed commands again, as new commands, and say what became of each."""
    from engram.cli.quarantine import Quarantine, retry_failed

    retry_failed(Quarantine(url, hint=_hint(url)), positions or [], every=every, json=json)


@group.command("drop")
@refuse_nicely
def drop(positions: SomePositions = None, *, every: Every = False, url: Url = GATEWAY, json: Json = False) -> None:
    """Give failed commands up: they leave the list, and stay in the log."""
    from engram.cli.quarantine import Quarantine, drop_failed

    drop_failed(Quarantine(url, hint=_hint(url)), positions or [], every=every, json=json)


def _hint(url: str) -> str:
    """What a command line needs to reach the same app."""
    return "" if url == GATEWAY else f"--url {url}"
