"""Virtual time: it passes when the simulation says so."""

from __future__ import annotations

_BEGIN_MS = 1_700_000_000_000
_TICK_S = 0.001


class VirtualTime:
    """What time it really is."""

    def __init__(self) -> None:
        self.now = _BEGIN_MS

    @property
    def passed(self) -> int:
        """Milliseconds since the beginning."""
        return self.now - _BEGIN_MS


class VirtualClock:
    """What one machine thinks that it is: see `engram.clock.Clock`."""

    def __init__(self, time: VirtualTime) -> None:
        self._time = time
        self.skew = 0

    def __call__(self) -> int:
        return self._time.now + self.skew


class VirtualStopwatch:
    """See `engram.clock.Stopwatch`. Every look at it takes a millisecond, so that what takes long is cut in slices."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def __call__(self) -> float:
        self._seconds += _TICK_S
        return self._seconds
