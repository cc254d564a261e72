"""The Python process of an executor, before our code runs in it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from engram.telemetry import log_to_stderr


def search_path() -> tuple[str, ...]:
    """Where this process finds its modules, for processes that are started elsewhere."""
    return tuple(entry or str(Path.cwd()) for entry in sys.path)


def prepare_worker(path: Sequence[str]) -> None:
    """Makes modules found where the driver finds them, and leaves signals and the screen to the driver."""
    # Ctrl-C reaches the whole process group; the driver decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for entry in reversed(path):
        if entry not in sys.path:
            sys.path.insert(0, entry)
    log_to_stderr()
