"""The garbage collector, set for millions of long-lived objects: entities in a shard, and in a gateway all that Python
and Spark have loaded, which to go over takes a tenth of a second each time."""

from __future__ import annotations

import gc

# Commands and requests live for milliseconds and die by reference count. With the default of 700 allocations the
# collector would look at them again and again, and from time to time at every entity there is.
_YOUNG = 50_000
_MIDDLE = 50
_OLD = 100


def collect_rarely() -> None:
    """Makes the collector look less often from here on: before millions of objects are made, by a load or a replay."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)


def keep_what_is_there() -> None:
    """Takes what was loaded out of the collector's sight. It is not gone over before: with millions of objects that
    takes seconds, in which nobody is served, and finds next to nothing."""
    gc.freeze()
