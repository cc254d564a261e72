"""The garbage collector, set for millions of long-lived objects."""

from __future__ import annotations

import gc

# A record's commands live for milliseconds and die by reference count. With the default of 700 allocations the
# collector would look at them again and again, and from time to time at every entity there is.
_YOUNG = 50_000
_MIDDLE = 50
_OLD = 100


def collect_rarely() -> None:
    """Takes what is loaded out of the collector's sight, and makes it look at the rest less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
