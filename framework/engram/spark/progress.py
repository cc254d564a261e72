"""How far the tasks of a batch job are, told to the driver while they run: Spark says only when one has ended."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, wait
from typing import NamedTuple

# What a person can follow; a task that tells more often would spend its time on it.
_EVERY_S = 0.25
_WAIT_S = 0.25
_LONGEST_WORD = 4096


class Progress(NamedTuple):
    """Of a piece of work, by its number: so many done, of so many."""

    piece: int
    done: int
    of: int


Tell = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Door:
    """Where a driver listens, and the key to it. Travels to the tasks with the job."""

    host: str
    port: int
    key: bytes

    def teller(self, piece: int) -> Tell:
        """For one task: `tell(done, of)`, as often as it likes. A driver that does not listen is no reason to fail."""
        try:
            line: Connection | None = Client((self.host, self.port), authkey=self.key)
        except (OSError, EOFError):
            line = None
        last = 0.0

        def tell(done: int, of: int) -> None:
            nonlocal last
            if line is None or (done < of and time.monotonic() - last < _EVERY_S):
                return
            last = time.monotonic()
            with suppress(OSError):
                line.send_bytes(json.dumps([piece, done, of]).encode())

        return tell


class ProgressListener:
    """Hears the tasks on a thread of its own, and calls `on_progress` there. Words are JSON; no pickle is read."""

    def __init__(self, on_progress: Callable[[Progress], None], *, host: str = "127.0.0.1") -> None:
        self._on_progress = on_progress
        key = secrets.token_bytes(32)
        self._listener = Listener((host, 0), backlog=64, authkey=key)
        self.door = Door(host, self._listener.address[1], key)
        self._lines: list[Connection] = []
        self._closing = threading.Event()
        for target in (self._accept, self._hear):
            threading.Thread(target=target, name="engram-progress", daemon=True).start()

    def close(self) -> None:
        self._closing.set()
        with suppress(OSError, EOFError):
            Client((self.door.host, self.door.port), authkey=self.door.key).close()  # so that `accept` returns
        self._listener.close()

    def _accept(self) -> None:
        while not self._closing.is_set():
            with suppress(OSError, EOFError, AuthenticationError):
                self._lines.append(self._listener.accept())

    def _hear(self) -> None:
        while not self._closing.wait(0 if self._lines else _WAIT_S):
            for line in wait(list(self._lines), _WAIT_S):
                assert isinstance(line, Connection)
                try:
                    self._on_progress(Progress(*json.loads(line.recv_bytes(_LONGEST_WORD))))
                except (OSError, EOFError, ValueError, TypeError):
                    self._lines.remove(line)
                    line.close()
