"""`engram snapshot`."""

from __future__ import annotations

from typing import Annotated

import typer

from engram.cli.options import GATEWAY, AppReference, Json, LogOfSnapshots, LogUrl, Snapshots, Url
from engram.cli.output import refuse_nicely

group = typer.Typer(help="Snapshots: what there is, and whether it can be used.", no_args_is_help=True)


@group.command("list")
@refuse_nicely
def listed(
    reference: AppReference, *, log: LogOfSnapshots = None, snapshots: Snapshots = None, json: Json = False
) -> None:
    """List snapshots: of which record, how old, how many entities, what had changed, and what it cost."""
    from engram.cli.snapshot import list_snapshots

    list_snapshots(reference, log, snapshots, json=json)


@group.command("take")
@refuse_nicely
def take(
    *,
    name: Annotated[
        str, typer.Option(help="Makes savepoints of them: whole, and kept until somebody removes them.")
    ] = "",
    url: Url = GATEWAY,
    json: Json = False,
) -> None:
    """Have a running app take a snapshot of every partition, while it goes on."""
    from engram.cli.savepoint import take_snapshots

    take_snapshots(url, name=name, json=json)


@group.command("show")
@refuse_nicely
def show(
    reference: AppReference,
    which: Annotated[
        str, typer.Argument(metavar="SNAPSHOT", help="A savepoint's name, or PARTITION:OFFSET, such as 3:1042")
    ],
    *,
    log: LogOfSnapshots = None,
    snapshots: Snapshots = None,
    json: Json = False,
) -> None:
    """Show all that is known of a snapshot, or of a savepoint in every partition: parts, types, versions, timers."""
    from engram.cli.snapshot import show_snapshot

    show_snapshot(reference, which, log, snapshots, json=json)


@group.command("restore-from")
@refuse_nicely
def restore_from(
    reference: AppReference,
    name: Annotated[str, typer.Argument(metavar="SAVEPOINT", help="Its name.")],
    log: LogUrl,
    *,
    snapshots: Snapshots = None,
    json: Json = False,
) -> None:
    """Have the next start of an app begin from a savepoint: newer snapshots are set aside. It must not be running."""
    from engram.cli.restore import restore_from

    restore_from(reference, log, snapshots, name, json=json)


@group.command("remove")
@refuse_nicely
def remove(
    reference: AppReference,
    name: Annotated[str, typer.Argument(metavar="SAVEPOINT", help="Its name.")],
    *,
    log: LogOfSnapshots = None,
    snapshots: Snapshots = None,
    json: Json = False,
) -> None:
    """Remove a savepoint, which is kept otherwise. Not while it is the newest snapshot."""
    from engram.cli.snapshot import remove_savepoint

    remove_savepoint(reference, name, log, snapshots, json=json)


@group.command("verify")
@refuse_nicely
def verify(
    reference: AppReference, *, log: LogOfSnapshots = None, snapshots: Snapshots = None, json: Json = False
) -> None:
    """Read every snapshot back as a start would: parts, checksums, every entity. Nothing is changed."""
    from engram.cli.snapshot import verify_snapshots

    verify_snapshots(reference, log, snapshots, json=json)
