from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from engram.log.base import Log
from engram.log.sqlite import SqliteLog
from engram.sinks.base import Sink
from engram.sinks.places import Places
from engram.sinks.runner import SinkRunner

Run = Callable[..., SinkRunner]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a log of three partitions is."""
    SqliteLog(tmp_path / "log.db", "social", partitions=3, create=True).close()
    return tmp_path / "log.db"


@pytest.fixture
def log(path: Path) -> Iterator[Log]:
    """That log, to let events out."""
    with closing(SqliteLog(path, "social")) as log:
        yield log


@pytest.fixture
def run(path: Path, tmp_path: Path) -> Iterator[Run]:
    """Starts the runner of a sink, beside that log; it is stopped with the test."""
    runners: list[SinkRunner] = []

    def start(sink: Sink, *, log: Path = path, **how: float) -> SinkRunner:
        places = Places(tmp_path / "places.db")
        runners.append(SinkRunner(sink, lambda: SqliteLog(log, "social"), places, **how))
        runners[-1].start()
        return runners[-1]

    yield start
    for runner in runners:
        runner.stop()
