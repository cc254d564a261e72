"""All formats, in a SparkSession."""

from __future__ import annotations

from typing import Any

from engram.spark.frames.events import EventSource
from engram.spark.frames.log import LogSource
from engram.spark.frames.replies import ReplySource
from engram.spark.frames.rows import RowSource
from engram.spark.frames.source import Source
from engram.spark.frames.state import StateSource
from engram.spark.worker import search_path

FORMATS: tuple[type[Source], ...] = (LogSource, StateSource, EventSource, ReplySource, RowSource)


def register(session: Any) -> None:
    """Makes the formats known to a SparkSession. Apps are found where this process finds them."""
    for source in FORMATS:
        session.dataSource.register(_here(source))


def _here(source: type[Source]) -> type[Source]:
    """The same format with this process's search path. A class that is made here is sent to Spark's Python processes
    as it is, and not by its name."""
    return type(source.__name__, (source,), {"path": search_path(), "__module__": "__main__"})
