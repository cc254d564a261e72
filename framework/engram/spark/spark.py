"""A Spark for an application's shards: on loopback, quiet, with enough task slots, and gone when it is closed."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from engram.errors import Misuse
from engram.spark.java import java_version
from engram.spark.settings import TASK_FAILURES, SparkSettings

_EXECUTORS_WAIT_S = 60.0
_JVM_END_S = 20.0
_SCRATCH = "engram-spark-"


def not_of_py4j(record: logging.LogRecord) -> bool:
    """For the root logger: a call into a JVM that is gone raises, and py4j prints the same there with its traceback."""
    return Path(record.pathname).parent.name != "py4j"


def default_master(shards: int) -> str:
    """Everything on this machine, a slot for each shard."""
    return f"local[{shards},{TASK_FAILURES}]"


class Spark:
    """One SparkContext and its JVM. A process can hold one at a time; that is PySpark's rule."""

    def __init__(
        self,
        *,
        name: str,
        master: str,
        slots: int,
        log_file: Path | None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Starts Spark and waits until it has `slots` task slots. Spark's own output goes to `log_file`; None lets
        it through. `settings` are Spark's own and win over ours; with `spark.driver.host`, executors may be on other
        machines. Raises `Misuse` when Java is missing, the master cannot be used, or has too few slots, and when a
        Spark runs in this process already."""
        _check_alone()
        java_version()
        logging.getLogger().addFilter(not_of_py4j)
        self.settings = SparkSettings(master, settings or {})
        self.settings.check()
        _sweep_scratch()
        _end_jvm()  # of a Spark that somebody has stopped: it would go on with the settings of that one
        self._scratch = Path(tempfile.mkdtemp(prefix=f"{_SCRATCH}{os.getpid()}-"))
        try:
            with _environment(self.settings.environment(self._scratch)), _quiet(log_file):
                self.context = _start(name, self.settings.master_url(), self.settings.conf(self._scratch))
        except Exception as problem:
            self._leave_nothing()
            hint = f"; Spark's own words are in {log_file}" if log_file else ""
            raise Misuse(f"Spark did not start on master {master!r}: {_first_line(problem)}{hint}.") from problem
        try:
            self._check_slots(slots)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_problem: object) -> None:
        self.close()

    @cached_property
    def session(self) -> Any:
        """A SparkSession on it that knows our formats."""
        from pyspark.sql import SparkSession

        from engram.spark.frames.register import register

        session = SparkSession(self.context)
        # 200 by default, whose tasks cost more than what most jobs here have to do.
        session.conf.set("spark.sql.shuffle.partitions", str(4 * self.context.defaultParallelism))
        register(session)
        return session

    @property
    def host(self) -> str:
        """The address of this machine that its executors reach it by."""
        return self.settings.host

    @property
    def ui(self) -> str:
        """The address of Spark's own page."""
        return str(self.context.uiWebUrl or "")

    @property
    def is_lost(self) -> bool:
        """Whether Spark has ended by itself: its JVM is gone, or the cluster has given the application up."""
        try:
            return bool(self.context._jsc.sc().isStopped())
        except Exception:  # noqa: BLE001 - py4j raises its own kinds; all mean that nobody is there
            return True

    def close(self) -> None:
        """Stops Spark and its JVM, and removes what they kept on disk."""
        with suppress(Exception):  # a JVM that is gone already cannot be asked to stop
            self.context.stop()
        self._leave_nothing()

    def _leave_nothing(self) -> None:
        _end_jvm()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _check_slots(self, wanted: int) -> None:
        jvm_context: Any = self.context._jsc.sc()
        profile = jvm_context.resourceProfileManager().defaultResourceProfile()
        # Executors of a cluster register one by one after the start.
        deadline = time.monotonic() + (0 if self.settings.is_local else _EXECUTORS_WAIT_S)
        while (slots := int(jvm_context.maxNumConcurrentTasks(profile))) < wanted:
            if time.monotonic() >= deadline:
                raise Misuse(
                    f"{wanted} shards need {wanted} task slots, but {self.settings.master} has {slots}: use fewer "
                    f"--shards, or a master with more cores (such as local[{wanted}])."
                )
            time.sleep(0.1)


def _check_alone() -> None:
    from pyspark import SparkContext

    if SparkContext._active_spark_context is not None:
        raise Misuse("A Spark runs in this process already, and there can be one at a time: stop it first, or use it.")


def _end_jvm() -> None:
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    SparkContext._gateway = None
    SparkContext._jvm = None
    if gateway is None:
        return
    process: subprocess.Popen[bytes] = gateway.proc
    with suppress(Exception):
        gateway.shutdown()
    if process.stdin is not None:
        process.stdin.close()  # the JVM ends when its parent's end of this pipe closes
    try:
        process.wait(_JVM_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _sweep_scratch() -> None:
    """Removes what Sparks of processes that were killed have left."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_SCRATCH}*"):
        owner = folder.name.removeprefix(_SCRATCH).partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists() and Path("/proc/self").exists():
            shutil.rmtree(folder, ignore_errors=True)


def _start(name: str, master: str, settings: Mapping[str, str]) -> Any:
    from pyspark import SparkConf, SparkContext

    conf = SparkConf(loadDefaults=False).setMaster(master).setAppName(name)
    for option, value in settings.items():
        conf.set(option, value)
    context = SparkContext(conf=conf)
    context.setLogLevel("WARN")
    return context


@contextmanager
def _environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """What Spark reads from the environment, for as long as it starts."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _quiet(log_file: Path | None) -> Iterator[None]:
    """The JVM inherits this process's output; while it starts, that is a file."""
    if log_file is None:
        yield
        return
    log_file.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(fd) for fd in (1, 2)]
    with log_file.open("ab") as file:
        for fd in (1, 2):
            os.dup2(file.fileno(), fd)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for fd, saved in zip((1, 2), kept, strict=True):
            os.dup2(saved, fd)
            os.close(saved)


def _first_line(problem: Exception) -> str:
    lines = [line for line in str(problem).splitlines() if line.strip()]
    cause = next((line.strip() for line in lines if "Exception:" in line), None)
    return cause or (lines[0] if lines else repr(problem))
