"""The contract of what snapshots are written to: files, or what takes their place."""

from __future__ import annotations

from typing import Protocol


class Storage(Protocol):
    """Files of one app, by their paths in it, such as `partition-0003/000000000001042-9f2c55d1.json`.

    All methods raise `Unavailable` when storage does not do its part: it is away, full, or refuses. What is not there
    is no failure of storage. One thread at a time.
    """

    place: str  # for people, without passwords

    def write(self, path: str, data: bytes) -> None:
        """Returns when the file is durable. It is seen whole or not at all. Folders are made."""

    def read(self, path: str) -> bytes:
        """Raises `Corrupt` when it is not there, or this file alone cannot be read."""

    def size(self, path: str) -> int | None:
        """In bytes; None when it is not there."""

    def names(self, folder: str) -> list[str]:
        """Of files and folders in it, not of what is in those; none when it is not there. `""` is the app's own."""

    def settle(self, folder: str) -> None:
        """Returns when what `names` has found there is durable, also what somebody left who was killed in a `write`."""

    def move(self, path: str, to: str) -> None:
        """Gives a file another name. Does nothing when it is not there any more."""

    def remove(self, path: str) -> None:
        """A file, or a folder with all that is in it. Does nothing when it is not there any more."""
