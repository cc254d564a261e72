"""What is left of processes that should be gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

import psutil


def running(pids: Iterable[int]) -> list[int]:
    """Those that still run. One that has ended and waits to be reaped does not."""
    return [pid for pid in pids if _runs(pid)]


def eventually(holds: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Looks again and again until `holds` or the time is over."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        threading.Event().wait(0.02)
    return True


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
