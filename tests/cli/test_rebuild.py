"""`engram rebuild`: what is refused of a log, whatever Spark does. The job itself is in tests/spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from engram import Misuse
from engram.cli.rebuild import checked
from engram.log.sqlite import SqliteLog
from engram.shard.survey import survey

from tests.serving.counter import app
from tests.serving.running import RunningApp


def test_a_running_app_is_not_rebuilt(tmp_path: Path):
    """The shard and its process are named; once it has ended, there is nothing to say."""
    with RunningApp(app, tmp_path) as running:
        running.http.post("/api/counters/counter/commands/add", params={"key": "a"})
        log = SqliteLog(running.folder / "log.db", app.name)
        with pytest.raises(
            Misuse, match=r"counters is running: shard \d \(process \d+\) has partition 0\. Stop it first\."
        ):
            checked(app, [survey(log, partition) for partition in range(log.partitions)], anew=False)

    surveys = [survey(log, partition) for partition in range(log.partitions)]
    stretches = checked(app, surveys, anew=False)
    log.close()
    assert [(s.partition, s.end) for s in stretches] == [(found.partition, found.end) for found in surveys]
