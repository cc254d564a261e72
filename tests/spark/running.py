"""A real `engram run` as a child process, and what belongs to it."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from tests.spark.quick import QUICK_OPTIONS

ROOT = Path(__file__).parents[2]
START_S = 150.0


class Running:
    """`engram run`, started as a user would; `close` ends it and everything below it."""

    def __init__(self, folder: Path, *options: str, app: str = "tests.spark.ledger:app", log: str = "app.db") -> None:
        self.log = log if ":" in log else f"sqlite:{folder / log}"
        command = [sys.executable, "-m", "engram.cli.main", "run", app, "--log", self.log, "--port", "0", "--json"]
        self.process = subprocess.Popen(
            [*command, *QUICK_OPTIONS, *options], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.events: list[dict[str, Any]] = []
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.descendants: list[psutil.Process] = []

    def wait_for(self, event: str, seconds: float = START_S) -> dict[str, Any]:
        """The next event of this name; fails with everything that was said when it does not come."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                line = self._lines.get(timeout=left)
            except queue.Empty:
                break
            if line is None:
                break
            told = json.loads(line)
            self.events.append(told)
            if told["event"] == event:
                return dict(told)
        raise AssertionError(f"no event {event!r}; heard {self.events}; exit {self.process.poll()}")

    def ready(self) -> str:
        """Waits until everything is served, and returns the gateway's address."""
        url = str(self.wait_for("ready")["url"])
        self.descendants = psutil.Process(self.process.pid).children(recursive=True)
        return url

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal and waits for the end; the exit code."""
        self.descendants = psutil.Process(self.process.pid).children(recursive=True) or self.descendants
        self.process.send_signal(number)
        return self.process.wait(START_S)

    def left_over(self) -> list[str]:
        """What still runs of everything that was started."""
        return [" ".join(p.cmdline()) for p in self.descendants if p.is_running() and p.status() != "zombie"]

    def close(self) -> None:
        if self.process.poll() is None:
            self.stop()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)


def executors_below(pid: int) -> list[int]:
    """The JVMs of a driver's executors, where these are processes of their own."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # others below come and go, such as Python workers
            if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()):
                found.append(process.pid)
    return found


def eventually(holds: Callable[[], bool], seconds: float) -> bool:
    """Looks again and again until `holds` or the time is over."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        threading.Event().wait(0.05)
    return True
