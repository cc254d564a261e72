"""Clocks: passed in wherever time is needed, so that tests and simulations bring their own."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], int]
"""Milliseconds since 1970."""

Stopwatch = Callable[[], float]
"""Seconds since some moment, for what takes how long; never goes back."""


def system_clock() -> int:
    """The clock of this machine."""
    return time.time_ns() // 1_000_000
