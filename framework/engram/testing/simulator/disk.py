"""A disk that keeps what was synced, and lines to it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Literal, NamedTuple

from engram.testing.simulator.process import Process

# What the machine's power loss leaves of what was not synced: all of it; the first of it; nothing; uneven: all that was
# done in some folders, and nothing of what was done in others.
Loss = Literal["clean", "torn", "lost", "uneven"]


class _File:
    """Contents, and how much of them a power loss leaves."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.synced: bytes | None = None

    def after(self, loss: Loss) -> _File:
        left = self.data if loss == "clean" or self.synced == self.data else self.synced
        if left is None:
            left = self.data[: len(self.data) // 2] if loss == "torn" else b""
        file = _File(left)
        file.synced = left
        return file


_Found = _File | None  # None is a folder


class _Done(NamedTuple):
    """What was done in a folder in one go: a name that stands for something, and one that does not any more."""

    name: str = ""
    found: _Found = None
    gone: str = ""


class SimulatedDisk:
    """Files and folders as processes see them, and as they would be after a power loss.

    That a name stands for a file, or does not any more, is safe once its folder was synced; until then a power loss
    leaves some of what was done in a folder, in its order, and folders know nothing of each other.
    """

    def __init__(self) -> None:
        self.full = False
        self._seen: dict[str, _Found] = {"/": None}
        self._safe: dict[str, _Found] = {"/": None}
        self._pending: dict[str, list[_Done]] = {}  # by folder

    def lose_power(self, loss: Loss) -> None:
        """Only what is safe is left, and of the rest as much as `loss` says."""
        if loss != "clean":
            for folder in list(self._pending):
                self._settle(folder, self._left(folder, loss))
            self._seen = {path: found for path, found in self._safe.items() if self._reachable(path)}
        fresh = {id(file): file.after(loss) for file in self._seen.values() if file is not None}
        self._seen = {path: None if file is None else fresh[id(file)] for path, file in self._seen.items()}
        self._safe = dict(self._seen)
        self._pending.clear()

    def files(self, suffix: str = "") -> list[str]:
        """The paths of all files, sorted."""
        return sorted(path for path, found in self._seen.items() if found is not None and path.endswith(suffix))

    def flip(self, path: str, bit: int) -> None:
        """One bit of a file is not what it was."""
        file = self._seen[path]
        if file is not None and file.data:
            data = bytearray(file.data)
            data[bit // 8 % len(data)] ^= 1 << bit % 8
            file.data = bytes(data)
            file.synced = None if file.synced is None else file.data

    # What processes do

    def make_folder(self, path: str) -> list[str]:
        made = [above for above in (path, *_above(path)) if above not in self._seen][::-1]
        for folder in made:
            self._link(folder, None)
        if self._seen[path] is not None:
            raise _error(errno.EEXIST, path)
        return made

    def write(self, path: str, data: bytes) -> None:
        if self.full:
            raise _error(errno.ENOSPC, path)
        if str(PurePosixPath(path).parent) not in self._seen:
            raise _error(errno.ENOENT, path)
        self._link(path, _File(data))

    def sync(self, path: str) -> None:
        file = self._file(path)
        file.synced = file.data

    def rename(self, path: str, to: str) -> None:
        self._link(to, self._file(path), gone=path)

    def sync_folder(self, path: str) -> None:
        self._settle(path, len(self._pending.get(path, ())))

    def read(self, path: str) -> bytes:
        return self._file(path).data

    def names(self, path: str) -> list[str]:
        if path not in self._seen:
            raise _error(errno.ENOENT, path)
        return [found[len(path) + 1 :] for found in self._seen if _parent(found) == path and found != path]

    def remove(self, path: str) -> None:
        if path not in self._seen:
            raise _error(errno.ENOENT, path)
        if self._seen[path] is None:
            for name in self.names(path):
                self.remove(f"{path}/{name}")
        self._unlink(path)

    def _file(self, path: str) -> _File:
        file = self._seen.get(path)
        if file is None:
            raise _error(errno.EISDIR if path in self._seen else errno.ENOENT, path)
        return file

    def _link(self, path: str, found: _Found, *, gone: str = "") -> None:
        self._seen[path] = found
        self._seen.pop(gone, None)
        self._pending.setdefault(_parent(path), []).append(_Done(path, found, gone))

    def _unlink(self, path: str) -> None:
        del self._seen[path]
        self._pending.setdefault(_parent(path), []).append(_Done(gone=path))

    def _settle(self, folder: str, count: int) -> None:
        """The first so many things that were done in a folder are safe."""
        pending = self._pending.get(folder, [])
        for done in pending[:count]:
            if done.name:
                self._safe[done.name] = done.found
            self._safe.pop(done.gone, None)
        del pending[:count]

    def _left(self, folder: str, loss: Loss) -> int:
        """How much of what was done in a folder is left: half of it, or all where there are no folders in it."""
        done = len(self._pending[folder])
        if loss == "uneven":
            return 0 if any(_parent(path) == folder and found is None for path, found in self._safe.items()) else done
        return (done + 1) // 2 if loss == "torn" else 0

    def _reachable(self, path: str) -> bool:
        return all(above in self._safe for above in _above(path))


class DiskLine:
    """See `engram.snapshots.disk.Disk`: the disk as one process reaches it."""

    def __init__(self, disk: SimulatedDisk, process: Process) -> None:
        self._disk = disk
        self._process = process

    def make_folder(self, path: str) -> list[str]:
        return self._reached(path).make_folder(path)

    def is_writable(self, path: str) -> bool:
        return True

    def write(self, path: str, data: bytes) -> None:
        self._reached(path).write(path, data)

    def sync(self, path: str) -> None:
        self._reached(path).sync(path)

    def rename(self, path: str, to: str) -> None:
        self._reached(path).rename(path, to)

    def sync_folder(self, path: str) -> None:
        self._reached(path).sync_folder(path)

    def read(self, path: str) -> bytes:
        return self._reached(path).read(path)

    def size(self, path: str) -> int:
        return len(self._reached(path).read(path))

    def names(self, path: str) -> list[str]:
        return self._reached(path).names(path)

    def remove(self, path: str) -> None:
        self._reached(path).remove(path)

    def _reached(self, path: str) -> SimulatedDisk:
        if not self._process.reach("store"):
            raise _error(errno.ETIMEDOUT, path)
        return self._disk


def _above(path: str) -> Iterator[str]:
    while path != "/":
        path = _parent(path)
        yield path


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
