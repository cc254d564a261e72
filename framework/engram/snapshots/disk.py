"""What snapshots need of a file system, call by call: so that a simulation can lose what was not synced."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Protocol


class Disk(Protocol):
    """Files and folders by their paths. All methods raise `OSError`.

    What is written is there after a crash of the machine only once it is synced; that a path names it, only once its
    folder is.
    """

    def make_folder(self, path: str) -> list[str]:
        """Makes it, and those above it; returns those that were not there, the highest first."""

    def is_writable(self, path: str) -> bool: ...

    def write(self, path: str, data: bytes) -> None:
        """A new file, or one with new contents."""

    def sync(self, path: str) -> None:
        """A file's contents; its name is its folder's."""

    def rename(self, path: str, to: str) -> None:
        """Takes the place of what was there."""

    def sync_folder(self, path: str) -> None: ...

    def read(self, path: str) -> bytes: ...

    def size(self, path: str) -> int: ...

    def names(self, path: str) -> list[str]: ...

    def remove(self, path: str) -> None:
        """A file, or a folder with all that is in it."""


class LocalDisk:
    """See `Disk`: that of this machine."""

    def make_folder(self, path: str) -> list[str]:
        folder = Path(path)
        made = [str(missing) for missing in (folder, *folder.parents) if not missing.exists()][::-1]
        folder.mkdir(parents=True, exist_ok=True)
        return made

    def is_writable(self, path: str) -> bool:
        return os.access(path, os.W_OK)

    def write(self, path: str, data: bytes) -> None:
        Path(path).write_bytes(data)

    def sync(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, path: str, to: str) -> None:
        Path(path).rename(to)

    def sync_folder(self, path: str) -> None:
        self.sync(path)

    def read(self, path: str) -> bytes:
        return Path(path).read_bytes()

    def size(self, path: str) -> int:
        return Path(path).stat().st_size

    def names(self, path: str) -> list[str]:
        return [found.name for found in Path(path).iterdir()]

    def remove(self, path: str) -> None:
        if Path(path).is_dir():
            shutil.rmtree(path)
        else:
            Path(path).unlink()
