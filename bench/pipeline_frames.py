"""The parts of `pipeline` about DataFrames and `engram rebuild`."""

from __future__ import annotations

from bench.result import Result


def scans(result: Result) -> None:
    """The log and state as DataFrames, against Spark's own Parquet scan and DuckDB."""


def rebuilds(result: Result) -> None:
    """`engram rebuild` on one and two cores, against the bare hot path."""
