"""Waking the readers of an embedded log: named pipes in a folder beside it.

SQLite cannot tell a process that another one has committed, and looking again and again costs either time
or latency. So every reader makes a pipe in the folder, and a writer puts a byte into each after its commit.
A pipe whose reader has died is found by the next writer (opening it fails) and removed.
"""

from __future__ import annotations

import errno
import os
import secrets
import threading
import time
from contextlib import suppress
from pathlib import Path

from engram.log.memory import drain

# A folder's time of change is told in steps of some milliseconds: what comes after it within the same step cannot be
# told from what was there before. From this long after it on, whatever comes changes it.
_STEP_NS = 100_000_000


class WakeFolder:
    """One process's view of the folder. Its methods may be called from any thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pipes: dict[str, int] = {}
        self._seen = 0  # when the folder had changed last, as it was looked into; 0 if it is to be looked into anyway
        self._lock = threading.Lock()

    def join(self) -> Wake:
        """A new pipe, which every commit from now on writes to."""
        # A last reader that leaves removes the folder: between our two steps it may be gone again.
        for _ in range(100):
            self._folder.mkdir(exist_ok=True)
            with suppress(FileNotFoundError):
                return Wake(self._folder / secrets.token_hex(8))
        raise OSError(errno.EAGAIN, f"{self._folder} disappears as soon as it is made")

    def wake_all(self) -> None:
        """Tells every reader, without waiting for any. Those that are known first: somebody waits for the reply that
        they will give, and to look who else is there takes longer than to wake them."""
        with self._lock:
            known = set(self._pipes)
            for name in known:
                self._wake(name)
            changed = self._changed()
            if not changed or changed != self._seen:
                self._seen = changed if time.time_ns() - changed > _STEP_NS else 0
                self._wake_others(known)

    def _changed(self) -> int:
        """When somebody has come or gone last; 0 if there is nobody."""
        try:
            return self._folder.stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def _wake_others(self, known: set[str]) -> None:
        try:
            names = {path.name for path in self._folder.iterdir() if not path.name.startswith(".")}
        except FileNotFoundError:
            names = set()
        for gone in self._pipes.keys() - names:
            os.close(self._pipes.pop(gone))
        for name in names - known:
            self._wake(name)

    def close(self) -> None:
        with self._lock:
            while self._pipes:
                os.close(self._pipes.popitem()[1])
        with suppress(OSError):  # there is none, or somebody still reads
            self._folder.rmdir()

    def _wake(self, name: str) -> None:
        try:
            if name not in self._pipes:
                self._pipes[name] = os.open(self._folder / name, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.write(self._pipes[name], b"!")
        except BlockingIOError:
            pass  # full: the reader is awake already
        except OSError as problem:
            if problem.errno not in (errno.ENXIO, errno.EPIPE, errno.ENOENT):
                raise
            # Nobody reads it any more: its process was killed.
            if name in self._pipes:
                os.close(self._pipes.pop(name))
            with suppress(FileNotFoundError):
                (self._folder / name).unlink()


class Wake:
    """See `engram.log.base.Watch`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # Under a hidden name until it is open: a writer takes a pipe that nobody reads for a dead one's.
        hidden = path.with_name(f".{path.name}")
        os.mkfifo(hidden, 0o600)
        # Open for writing too: otherwise the pipe reads as ended whenever no writer has it open.
        self._fd = os.open(hidden, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        hidden.rename(path)

    def fileno(self) -> int:
        return self._fd

    def clear(self) -> None:
        drain(self._fd)

    def wake(self) -> None:
        with suppress(BlockingIOError):  # full: it is awake already
            os.write(self._fd, b"!")

    def close(self) -> None:
        with suppress(OSError):
            self._path.unlink()
            self._path.parent.rmdir()
        os.close(self._fd)
