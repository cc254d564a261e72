"""Names of savepoints."""

from __future__ import annotations

import re
from collections.abc import Iterable

from engram.errors import Misuse
from engram.snapshots.base import SnapshotStore

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


def check_savepoint_name(name: str) -> None:
    """Raises `Misuse` for what cannot name a savepoint."""
    if not _NAME.fullmatch(name):
        raise Misuse(f"{name!r} cannot name a savepoint: use 1 to 64 of the characters A-Z a-z 0-9 . _ -")


def check_savepoint_new(name: str, store: SnapshotStore, partitions: Iterable[int]) -> None:
    """Raises `Misuse` when one of the partitions has a savepoint of that name: it is kept, so another needs its own."""
    for partition in partitions:
        known = store.savepoint(partition, name)
        if known is not None:
            raise Misuse(
                f"There is a savepoint {name} of partition {partition} already, of record {known.offset} and version "
                f"{known.app_version}: choose another name."
            )
