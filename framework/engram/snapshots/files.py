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
        self._disk = disk or LocalDisk()
        self._new_mark = new_mark
        self._safe: set[str] = set()  # folders that are there after a power loss, as far as this process knows
        try:
            self._disk.make_folder(self.place)
            # All of them, as in `_make_folder`. Those where we may not even look were not made by us.
            for above in (folder, *folder.parents[:-1]):
                with suppress(PermissionError):
                    self._sync_above(str(above))
        except OSError as problem:
            raise Misuse(f"Snapshots cannot be kept in {folder.parent}: {problem.strerror}.") from problem
        if not self._disk.is_writable(self.place):
            raise Misuse(f"The snapshot folder {folder} is not writable: choose another, or change its rights.")

    def write(self, path: str, data: bytes) -> None:
        target, disk = self._path(path), self._disk
        folder, _, name = target.rpartition("/")
        temporary = f"{folder}/.{name}.{self._new_mark()}"
        with _telling():
            self._make_folder(folder)
            try:
                disk.write(temporary, data)
                disk.sync(temporary)
                disk.rename(temporary, target)
            except OSError:
                with suppress(OSError):
                    disk.remove(temporary)
                raise
            disk.sync_folder(folder)

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

    def settle(self, folder: str) -> None:
        with _telling(), suppress(FileNotFoundError, NotADirectoryError):
            self._disk.sync_folder(self._path(folder))

    def move(self, path: str, to: str) -> None:
        with _telling(), suppress(FileNotFoundError):
            self._disk.rename(self._path(path), self._path(to))
            self._sync_above(self._path(path))

    def remove(self, path: str) -> None:
        with _telling(), suppress(FileNotFoundError):
            self._safe.discard(self._path(path))
            self._disk.remove(self._path(path))
            # Or a power loss brings a manifest back whose parts, removed after it, are gone.
            self._sync_above(self._path(path))

    def _make_folder(self, folder: str) -> None:
        """So that it is there after a power loss, and all of those that it is in. One that was there already may have
        been made by a process that was killed just then: so each is synced once by every process."""
        made = self._disk.make_folder(folder)
        while folder != self.place and (made or folder not in self._safe):
            self._sync_above(folder)
            self._safe.add(folder)
            folder = folder.rpartition("/")[0]

    def _sync_above(self, folder: str) -> None:
        self._disk.sync_folder(str(Path(folder).parent))

    def _path(self, path: str) -> str:
        return f"{self.place}/{path}" if path else self.place


@contextmanager
def _telling() -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise Unavailable(str(problem)) from problem
