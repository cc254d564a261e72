"""Snapshots as local files."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from engram.errors import Corrupt, Misuse, Unavailable
from engram.snapshots.disk import Disk, LocalDisk
from engram.snapshots.parted import KEEP, PartedSnapshots, new_mark

# What says that this one file is lost. All else is the disk's or the process's trouble, and may pass.
_DAMAGE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO, errno.ENAMETOOLONG}


class FileSnapshots(PartedSnapshots):
    """See `engram.snapshots.base.SnapshotStore`. The folder is made."""

    def __init__(self, folder: Path, app: str, *, keep: int = KEEP) -> None:
        super().__init__(FileStorage(folder / app), app, keep=keep)


class FileStorage:
    """See `engram.snapshots.storage.Storage`. A file is written under a temporary name, synced and renamed; then its
    folder is synced, as it is when a file is moved or removed: what was done is done, in its order, also after a power
    loss."""

    def __init__(self, folder: Path, *, disk: Disk | None = None, new_mark: Callable[[], str] = new_mark) -> None:
        self.place = str(folder)
        self._folder = folder
        self._disk = disk or LocalDisk()
        self._new_mark = new_mark
        try:
            self._sync_above(self._disk.make_folder(str(folder)))
        except OSError as problem:
            raise Misuse(f"Snapshots cannot be kept in {folder.parent}: {problem.strerror}.") from problem
        if not self._disk.is_writable(str(folder)):
            raise Misuse(f"The snapshot folder {folder} is not writable: choose another, or change its rights.")

    def write(self, path: str, data: bytes) -> None:
        target = self._folder / path
        folder = str(target.parent)
        temporary = f"{folder}/.{target.name}.{self._new_mark()}"
        disk = self._disk
        with _telling():
            made = disk.make_folder(folder)
            try:
                disk.write(temporary, data)
                disk.sync(temporary)
                disk.rename(temporary, str(target))
            except OSError:
                with suppress(OSError):
                    disk.remove(temporary)
                raise
            disk.sync_folder(folder)
            self._sync_above(made)

    def read(self, path: str) -> bytes:
        try:
            return self._disk.read(self._path(path))
        except OSError as problem:
            if problem.errno in _DAMAGE:
                raise Corrupt(f"its file {path} cannot be read: {problem.strerror}") from problem
            raise Unavailable(str(problem)) from problem

    def size(self, path: str) -> int | None:
        with _telling(), suppress(FileNotFoundError, NotADirectoryError):
            return self._disk.size(self._path(path))
        return None

    def names(self, folder: str) -> list[str]:
        with _telling(), suppress(FileNotFoundError, NotADirectoryError):
            return self._disk.names(self._path(folder))
        return []

    def move(self, path: str, to: str) -> None:
        with _telling(), suppress(FileNotFoundError):
            self._disk.rename(self._path(path), self._path(to))
            self._disk.sync_folder(self._parent(path))

    def remove(self, path: str) -> None:
        with _telling(), suppress(FileNotFoundError):
            self._disk.remove(self._path(path))
            # Or a power loss brings a manifest back whose parts, removed after it, are gone.
            self._disk.sync_folder(self._parent(path))

    def _sync_above(self, made: list[str]) -> None:
        """A folder that was made is there after a power loss only once the one above it is synced: each of them, or all
        that is in it is lost."""
        for folder in made:
            self._disk.sync_folder(str(Path(folder).parent))

    def _path(self, path: str) -> str:
        return str(self._folder / path)

    def _parent(self, path: str) -> str:
        return str((self._folder / path).parent)


@contextmanager
def _telling() -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise Unavailable(str(problem)) from problem
