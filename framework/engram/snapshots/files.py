"""Snapshots as local files."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from engram.errors import Corrupt, Misuse, Unavailable
from engram.snapshots.parted import KEEP, PartedSnapshots

# What says that this one file is lost. All else is the disk's or the process's trouble, and may pass.
_DAMAGE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO, errno.ENAMETOOLONG}


class FileSnapshots(PartedSnapshots):
    """See `engram.snapshots.base.SnapshotStore`. The folder is made."""

    def __init__(self, folder: Path, app: str, *, keep: int = KEEP) -> None:
        super().__init__(FileStorage(folder / app), app, keep=keep)


class FileStorage:
    """See `engram.snapshots.storage.Storage`. A file is written under a temporary name, synced and renamed; then its
    folder is synced."""

    def __init__(self, folder: Path) -> None:
        self.place = str(folder)
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise Misuse(f"Snapshots cannot be kept in {folder.parent}: {problem.strerror}.") from problem
        if not os.access(folder, os.W_OK):
            raise Misuse(f"The snapshot folder {folder} is not writable: choose another, or change its rights.")

    def write(self, path: str, data: bytes) -> None:
        target = self._folder / path
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        with _telling():
            try:
                new_folder = not target.parent.is_dir()
                target.parent.mkdir(parents=True, exist_ok=True)
                _write(temporary, data)
                temporary.rename(target)
            except OSError:
                with suppress(OSError):
                    temporary.unlink(missing_ok=True)
                raise
            _sync_folder(target.parent)
            if new_folder:
                _sync_folder(target.parent.parent)

    def read(self, path: str) -> bytes:
        try:
            return (self._folder / path).read_bytes()
        except OSError as problem:
            if problem.errno in _DAMAGE:
                raise Corrupt(f"its file {path} cannot be read: {problem.strerror}") from problem
            raise Unavailable(str(problem)) from problem

    def size(self, path: str) -> int | None:
        with _telling(), suppress(FileNotFoundError, NotADirectoryError):
            return (self._folder / path).stat().st_size
        return None

    def names(self, folder: str) -> list[str]:
        with _telling(), suppress(FileNotFoundError, NotADirectoryError):
            return [path.name for path in (self._folder / folder).iterdir()]
        return []

    def move(self, path: str, to: str) -> None:
        with _telling(), suppress(FileNotFoundError):
            (self._folder / path).rename(self._folder / to)

    def remove(self, path: str) -> None:
        target = self._folder / path
        with _telling(), suppress(FileNotFoundError):
            if target.is_dir():
                shutil.rmtree(target)
            else:
                target.unlink()


@contextmanager
def _telling() -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise Unavailable(str(problem)) from problem


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """A rename is durable only once its folder is."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
