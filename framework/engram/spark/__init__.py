"""Spark: shards as long-lived tasks, batch jobs over partitions, and an app's data as DataFrames.

For notebooks and jobs of your own:

    import engram.spark

    spark = engram.spark.session()
    log = spark.read.format("engram.log").option("app", "social").option("log", "sqlite:data/social.db").load()
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register", "session"]


def session(
    *, name: str = "engram", master: str = "local[*]", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A new SparkSession that knows the formats `engram.log`, `engram.state`, `engram.events`, `engram.replies` and
    `engram.rows`. It lives as long as this process, or until its `stop()`.

    Raises `Misuse` when Spark does not start. A process can hold one Spark at a time: another is there to have once the
    first was stopped.
    """
    import atexit

    from engram.spark.spark import Spark

    spark = Spark(name=name, master=master, slots=1, log_file=None, settings=settings)
    atexit.register(spark.close)
    return spark.session


def register(session: SparkSession) -> None:
    """Makes the formats known to a SparkSession that was made elsewhere, such as a cluster's own."""
    from engram.spark.frames.register import register

    register(session)
