"""The shards of an application as one Spark job, kept alive."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Any

from engram.spark.spark import Spark
from engram.spark.task import ShardSpec

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0
# A job that ran this long was well: its end is not the next of a row of failures.
_HEALTHY_S = 120.0
_PYTHON_ERROR = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt)\b")


class ShardJob:
    """Runs n shards as n long-lived tasks, on a thread of its own.

    Spark starts a task again whose process died. A job that has used up its task failures, or whose tasks
    have all ended without being told to, is started again after a pause that doubles each time. When Spark itself is
    lost there is nothing left to start it on: `on_lost` is called, on the job's thread, and the job is over.
    """

    def __init__(
        self,
        spark: Spark,
        spec: ShardSpec,
        *,
        on_restart: Callable[[int, str], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._spark = spark
        self._spec = spec
        self._on_restart = on_restart
        self._on_lost = on_lost
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engram-shards", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def expect_end(self) -> None:
        """From now on the end of the job is what is wanted."""
        self._stopping.set()

    def join(self, seconds: float) -> bool:
        """Waits for the job to end; cancels it when it does not. True when it ended by itself."""
        self._thread.join(seconds)
        ended = not self._thread.is_alive()
        if not ended:
            self._spark.context.cancelAllJobs()
            self._thread.join(seconds)
        return ended

    def _run(self) -> None:
        pause = _FIRST_PAUSE_S
        starts = 0
        while not self._stopping.is_set():
            started = time.monotonic()
            why = self._run_job()
            if time.monotonic() - started > _HEALTHY_S:
                pause = _FIRST_PAUSE_S
            if self._stopping.is_set():
                return
            if self._spark.is_lost:
                self._on_lost(why)
                return
            if self._stopping.wait(pause):
                return
            starts += 1
            self._on_restart(starts, why)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _run_job(self) -> str:
        context: Any = self._spark.context
        shards = self._spec.shards
        try:
            context.parallelize(range(shards), shards).mapPartitionsWithIndex(self._spec).collect()
        except Exception as problem:  # noqa: BLE001 - py4j raises its own kinds; all mean that the job has ended
            return cause_of(problem)
        return "all shards had ended"


def cause_of(problem: Exception) -> str:
    """Spark's own sentence, or that of the Python error in a task, out of a page of Java."""
    lines = str(problem).splitlines() or [repr(problem)]
    of_spark = (line.partition(": ")[2] for line in lines if "Job aborted" in line or "cancelled" in line)
    of_python = (line for line in lines if _PYTHON_ERROR.match(line))
    return next(of_spark, None) or next(of_python, lines[0])
