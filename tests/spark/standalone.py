"""A standalone Spark cluster: a master and workers, each a process of its own, as `spark-class` starts them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Self

import psutil
import pyspark

from tests.spark.running import START_S, eventually

HOME = Path(pyspark.__file__).parent
_MASTER_URL = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = "Successfully registered with master"


class Daemon:
    """One master or worker. `prefix` comes before its command, such as `ip netns exec NAME`."""

    def __init__(
        self,
        folder: Path,
        name: str,
        kind: str,
        *options: str,
        host: str = "127.0.0.1",
        prefix: Sequence[str] = (),
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.name = name
        self.output = folder / f"{name}.log"
        conf = folder / f"{name}.conf"
        conf.write_text("".join(f"{setting} {value}\n" for setting, value in settings.items()))
        environment = {
            **os.environ,
            "SPARK_HOME": str(HOME),
            "SPARK_LOCAL_IP": host,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_WORKER_DIR": str(folder / f"{name}-work"),
            "SPARK_LOCAL_DIRS": str(folder / f"{name}-local"),
        }
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [*prefix, str(HOME / "bin" / "spark-class"), kind, "--host", host, "--properties-file", str(conf), *options],
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def said(self, pattern: re.Pattern[str] | str) -> re.Match[str] | None:
        return re.search(pattern, self.output.read_text(errors="replace"))

    def wait_for(self, pattern: re.Pattern[str] | str) -> re.Match[str]:
        assert eventually(lambda: self.said(pattern) is not None, START_S), self.output.read_text(errors="replace")
        found = self.said(pattern)
        assert found is not None
        return found

    def kill(self) -> None:
        """SIGKILL: its executors notice by themselves that it is gone."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(START_S)

    def close(self) -> None:
        """Ends it and everything below it."""
        below: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            below = psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        self.process.wait(START_S)
        for process in below:
            with suppress(psutil.NoSuchProcess):
                process.kill()


class Standalone:
    """A master and workers of two cores each on 127.0.0.1; ended with the `with` block."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self._folder = folder
        self._started = 0
        self.workers: list[Daemon] = []
        self.master = Daemon(
            folder,
            "master",
            "org.apache.spark.deploy.master.Master",
            *("--port", "0", "--webui-port", "0"),
            settings={"spark.master.rest.enabled": "false", "spark.ui.enabled": "false"},
        )
        try:
            self.url = self.master.wait_for(_MASTER_URL)[1]
            for _ in range(workers):
                self.start_worker()
            for worker in self.workers:
                worker.wait_for(_REGISTERED)
        except BaseException:
            self.close()
            raise

    def start_worker(self) -> Daemon:
        """One more; it registers with the master by itself, after some seconds."""
        self._started += 1
        worker = Daemon(
            self._folder,
            f"worker-{self._started}",
            "org.apache.spark.deploy.worker.Worker",
            *("--webui-port", "0", "--cores", "2", "--memory", "1g", self.url),
        )
        self.workers.append(worker)
        return worker

    def worker_of(self, pid: int) -> Daemon:
        """The worker below which a process runs."""
        above = {process.pid for process in psutil.Process(pid).parents()}
        return next(worker for worker in self.workers if worker.process.pid in above)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_problem: object) -> None:
        self.close()

    def close(self) -> None:
        for daemon in [*self.workers, self.master]:
            daemon.close()
