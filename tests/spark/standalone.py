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
from typing import NamedTuple, Self

import psutil
import pyspark

from tests.spark.running import START_S, eventually

HOME = Path(pyspark.__file__).parent
_MASTER_URL = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = "Successfully registered with master"


class Place(NamedTuple):
    """A machine: its address, and what comes before a command that is to run there, such as `ip netns exec NAME`."""

    host: str = "127.0.0.1"
    prefix: Sequence[str] = ()


HERE = Place()


class Daemon:
    """One master or worker."""

    def __init__(self, folder: Path, name: str, kind: str, *options: str, place: Place) -> None:
        self.name = name
        self.output = folder / f"{name}.log"
        environment = {
            **os.environ,
            "SPARK_HOME": str(HOME),
            "SPARK_CONF_DIR": str(folder),
            "SPARK_LOCAL_IP": place.host,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_WORKER_DIR": str(folder / f"{name}-work"),
            "SPARK_LOCAL_DIRS": str(folder / f"{name}-local"),
        }
        command = [*place.prefix, str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}"]
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [*command, "--host", place.host, *options],
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
    """A master and workers of two cores each; ended with the `with` block. `settings` are for all of them."""

    def __init__(
        self,
        folder: Path,
        *,
        master: Place = HERE,
        workers: Sequence[Place] = (HERE, HERE),
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.folder = folder
        self._started = 0
        self.workers: list[Daemon] = []
        of_all = {"spark.master.rest.enabled": "false", "spark.ui.enabled": "false", **settings}
        (folder / "spark-defaults.conf").write_text("".join(f"{name} {of_all[name]}\n" for name in of_all))
        self.master = Daemon(folder, "master", "master.Master", "--port", "0", "--webui-port", "0", place=master)
        try:
            self.url = self.master.wait_for(_MASTER_URL)[1]
            for place in workers:
                self.start_worker(place)
            for worker in self.workers:
                worker.wait_for(_REGISTERED)
        except BaseException:
            self.close()
            raise

    def start_worker(self, place: Place = HERE) -> Daemon:
        """One more; it registers with the master by itself, after some seconds."""
        self._started += 1
        options = ("--webui-port", "0", "--cores", "2", "--memory", "1g", self.url)
        worker = Daemon(self.folder, f"worker-{self._started}", "worker.Worker", *options, place=place)
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
