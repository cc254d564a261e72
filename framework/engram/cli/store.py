"""Where the snapshots of a log are, from what a command line says."""

from __future__ import annotations

from pathlib import Path

from engram.log.open import folder_beside
from engram.snapshots.open import absolute_store


def store_url(log: str, snapshots: str | None) -> str:
    """The URL that was given, or the folder beside the log."""
    return absolute_store(snapshots or f"{folder_beside(log)}-snapshots")


def copy_folder(log: str) -> Path:
    """Beside the log: what was published to a store elsewhere, for a fast start on this machine."""
    return Path(f"{folder_beside(log)}-snapshots-copy")
