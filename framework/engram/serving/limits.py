"""How much one may ask for: a bucket of tokens for each, filled at a steady rate."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

# So many are remembered; who was idle for longest is forgotten, and has a full bucket again.
_MOST_BUCKETS = 100_000


class Buckets:
    """Takes one token per request, from a bucket by name. Lives on one event loop."""

    def __init__(self, *, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens left, and when that was

    def take(self, name: str) -> float:
        """0 if there was a token; otherwise the seconds until there is one."""
        now = self._clock()
        left, then = self._buckets.pop(name, (float(self._burst), now))
        left = min(self._burst, left + (now - then) * self._rate)
        taken = left >= 1
        self._buckets[name] = left - 1 if taken else left, now
        if len(self._buckets) > _MOST_BUCKETS:
            self._buckets.popitem(last=False)
        return 0.0 if taken else (1 - left) / self._rate

    def owe(self, name: str, tokens: int) -> None:
        """Takes so many more from the bucket of one who was let in, also those that are not there yet: the next has to
        wait until they are."""
        left, then = self._buckets[name]
        self._buckets[name] = left - tokens, then
