"""All formats, in a SparkSession."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from engram.spark.frames.events import EventSource
from engram.spark.frames.log import LogSource
from engram.spark.frames.replies import ReplySource
from engram.spark.frames.rows import RowSource
from engram.spark.frames.source import Source
from engram.spark.frames.state import StateSource
from engram.spark.settings import PYTHON
from engram.spark.worker import search_path

FORMATS: tuple[type[Source], ...] = (LogSource, StateSource, EventSource, ReplySource, RowSource)
_SQL_PYTHON = "spark.sql.execution.pyspark.python"


def register(session: Any) -> None:
    """Makes the formats known to a SparkSession. Apps are found where this process finds them; by executors with an
    interpreter of their own, `spark.pyspark.python`, where that one does."""
    here = search_path()
    there = () if session.sparkContext.getConf().contains(PYTHON) else here
    with _planned_here(session):
        for source in FORMATS:
            session.dataSource.register(_with_paths(source, here, there))


@contextmanager
def _planned_here(session: Any) -> Iterator[None]:
    """What is registered meanwhile is planned by this process's interpreter. Spark plans a read of ours in a process
    of the driver's machine, with the interpreter that it was registered with: that of the executors, such as
    `./environment/bin/python`, need not be there. Executors ask SQL's own setting first."""
    context = session.sparkContext
    theirs = context.pythonExec
    if not session.conf.get(_SQL_PYTHON, None):
        session.conf.set(_SQL_PYTHON, theirs)
    context.pythonExec = sys.executable
    try:
        yield
    finally:
        context.pythonExec = theirs


def _with_paths(source: type[Source], here: tuple[str, ...], there: tuple[str, ...]) -> type[Source]:
    """The same format with its search paths. A class that is made here is sent to Spark's Python processes as it is,
    and not by its name."""
    return type(source.__name__, (source,), {"here": here, "there": there, "__module__": "__main__"})
