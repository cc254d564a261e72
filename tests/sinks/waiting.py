"""Waiting for something that another thread or process does, with a deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

SECONDS = 30.0
_pause = threading.Event()


def until(ready: Callable[[], object], what: str = "it") -> None:
    deadline = time.monotonic() + SECONDS
    while not ready():
        assert time.monotonic() < deadline, f"{what} did not come true in time"
        _pause.wait(0.01)
