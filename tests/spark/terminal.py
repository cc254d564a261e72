"""A program on a terminal, as a person has it: what is typed, what is shown, Ctrl-C and Ctrl-D."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import time
from pathlib import Path
from typing import Self

# Much longer than it takes to answer Ctrl-C.
_HEARD_S = 5.0
_ESCAPES = re.compile(r"\x1b\[[?\d;]*[A-Za-z]")


class Terminal:
    """Runs a command on a pseudo-terminal of its own, which controls it: Ctrl-C reaches it as a signal."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self._master, slave = pty.openpty()
        # The first process of a session is controlled by the terminal that it opens.
        opened = ["sh", "-c", 'exec "$@" < $0', os.ttyname(slave), *command]
        environment = {**os.environ, "TERM": "dumb", "COLUMNS": "120"}
        self.process = subprocess.Popen(
            opened, cwd=folder, env=environment, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)
        self._unread = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_problem: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def interrupt(self, until: str, seconds: float) -> str:
        """Ctrl-C, and what is shown then up to a text."""
        deadline = time.monotonic() + seconds
        # Python hears a signal that comes just before it waits for a key only with the next.
        while time.monotonic() < deadline:
            self.type("\x03")
            if self._comes(until, _HEARD_S):
                break
        return self.shown(until, seconds)

    def shown(self, until: str, seconds: float) -> str:
        """What is shown up to a text, and is not shown again; fails when that does not come."""
        assert self._comes(until, seconds), f"no {until!r} in {self._unread!r}; exit {self.process.poll()}"
        found, _, self._unread = self._unread.partition(until)
        return found

    def _comes(self, text: str, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while text not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0 or not self._read(left):
                return False
        return True

    def _read(self, seconds: float) -> bool:
        """Whether there was anything in that time."""
        ready, _, _ = select.select([self._master], [], [], seconds)
        try:
            piece = os.read(self._master, 4096) if ready else b""
        except OSError:  # nobody is at the other end any more
            piece = b""
        self._unread += _ESCAPES.sub("", piece.decode(errors="replace")).replace("\r", "")
        return bool(piece)
