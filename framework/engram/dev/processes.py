"""Processes and a folder that do not outlive this process, whatever ends it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engram.errors import Unavailable

_END_S = 30.0


class Processes:
    """A keeper of its own (`engram.dev.keeper`), and what it is asked for. Any thread may ask.

    The keeper is in a session of its own, so Ctrl-C in a terminal does not reach it, nor what it started.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        command = [sys.executable, "-P", "-m", "engram.dev.keeper", str(os.getpid())]
        self._keeper = subprocess.Popen(  # noqa: S603 - our own module
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self.folder = Path(self._answer())
        """Everything in it goes with the keeper."""

    def start(self, name: str, command: Sequence[str], output: Path) -> int:
        """Runs a command under a name, with its output in a file; its process id. A name may be used again when its
        process has ended."""
        return int(self._ask(do="start", name=name, command=list(command), output=str(output)))

    def code(self, name: str) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        code = self._ask(do="code", name=name)
        return None if code is None else int(code)

    def signal(self, name: str, number: int) -> None:
        """Sends a signal, unless the process has ended. After SIGKILL it is gone when this returns, after SIGSTOP it
        stands still."""
        self._ask(do="signal", name=name, number=number)

    def end(self) -> None:
        """Kills what still runs, removes the folder, and returns when all of it is gone. May be called again."""
        with self._lock:
            if self._keeper.stdin is None or self._keeper.stdin.closed:
                return
            try:
                self._keeper.communicate(json.dumps({"do": "end"}) + "\n", timeout=_END_S)
            except subprocess.TimeoutExpired:
                self._keeper.kill()
                self._keeper.communicate()
            except BrokenPipeError:  # it has ended, and what it was asked last is still to be written
                self._keeper.communicate()

    def _ask(self, **request: Any) -> Any:
        with self._lock:
            stdin = self._keeper.stdin
            if stdin is None or stdin.closed:
                raise Unavailable("The brokers were stopped: make new ones.")
            try:
                stdin.write(json.dumps(request) + "\n")
                stdin.flush()
            except BrokenPipeError:
                raise self._lost() from None
            return self._answer()

    def _answer(self) -> Any:
        assert self._keeper.stdout is not None
        line = self._keeper.stdout.readline()
        if not line:
            raise self._lost()
        return json.loads(line)

    def _lost(self) -> Unavailable:
        code = self._keeper.wait(_END_S)
        return Unavailable(f"The keeper of the brokers ended (exit code {code}), and they with it: make new ones.")
