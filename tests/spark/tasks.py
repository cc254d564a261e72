"""The processes of a Spark's tasks, and their end."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import psutil
from engram.spark.progress import Progress
from engram.spark.spark import Spark


class KillOnce:
    """Hears how far a job is; at the first word it kills the processes of all its tasks with SIGKILL."""

    def __init__(self, spark: Spark) -> None:
        self._jvm = psutil.Process(spark.context._gateway.proc.pid)
        self.victims: list[int] = []

    def __call__(self, _word: Progress) -> None:
        if self.victims:
            return
        for process in self._jvm.children(recursive=True):
            with suppress(psutil.Error, ProcessLookupError):
                if process.ppid() != self._jvm.pid and "pyspark.daemon" in " ".join(process.cmdline()):
                    os.kill(process.pid, signal.SIGKILL)
                    self.victims.append(process.pid)
