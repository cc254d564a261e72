"""The data pipeline on Spark: what is read, rebuilt and brought in, in rows and commands a second.

Each part is a function in a module of its own, which adds its rows and aims to the one result.
"""

from __future__ import annotations

from collections.abc import Callable

from bench import backfill, pipeline_frames
from bench.result import Result

# In this order: each has a Spark of its own.
PARTS: list[Callable[[Result], None]] = [
    pipeline_frames.scans,
    pipeline_frames.rebuilds,
    backfill.backfills,
]


def measure() -> Result:
    result = Result("The data pipeline on Spark, on the log of the hot path's traffic")
    for part in PARTS:
        part(result)
    return result
