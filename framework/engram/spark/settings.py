"""What Spark is told: where it listens, which Python its executors start, when a lost one is given up."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from engram.errors import Misuse
from engram.spark.worker import search_path

# How often Spark itself starts a killed shard again before it gives up the job and the supervisor starts anew.
TASK_FAILURES = 16
_FAILURES = "spark.task.maxFailures"
_LOOPBACK = "127.0.0.1"
PYTHON = "spark.pyspark.python"
_HOST = "spark.driver.host"
_AUTHENTICATE = "spark.authenticate"
# With Spark's own numbers an executor whose machine is gone is given up after two to three minutes, and nobody serves
# its partitions until then. Shorter than this, and a machine that is starved of CPU loses its executors.
_OF_A_CLUSTER = {
    "spark.executor.heartbeatInterval": "5s",
    "spark.storage.blockManagerHeartbeatTimeoutMs": "30000",
    "spark.network.timeoutInterval": "5s",
}


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Of one Spark: a master, and what the user has set, which wins over all of ours."""

    master: str
    own: Mapping[str, str]

    @property
    def host(self) -> str:
        """The address of this machine that executors reach it by, `spark.driver.host`; loopback unless it is set."""
        return self.own.get(_HOST, _LOOPBACK)

    @property
    def is_local(self) -> bool:
        """Whether driver and executor are one process."""
        return self.master == "local" or self.master.startswith("local[")

    @property
    def is_alone(self) -> bool:
        """Whether everything is on this machine and nobody else can come in."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def python(self) -> str:
        """The interpreter that executors start, `spark.pyspark.python`; this one unless it is set."""
        return self.own.get(PYTHON, sys.executable)

    @property
    def path(self) -> tuple[str, ...]:
        """Where executors look for modules before they look in their own places. An interpreter of their own has all
        that it needs: what this machine has for another one would only disturb it."""
        return () if PYTHON in self.own else search_path()

    def master_url(self) -> str:
        """`local[n]` never retries a task; a second number is how it is told to, and the setting is not looked at."""
        if re.fullmatch(r"local\[[^,\]]+\]", self.master):
            return self.master[:-1] + f",{self.own.get(_FAILURES, TASK_FAILURES)}]"
        return self.master

    def environment(self, scratch: Path) -> dict[str, str]:
        """What Spark reads from the environment while it starts."""
        return {
            "PYSPARK_PYTHON": self.python,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": self.host,
            "SPARK_WORKER_DIR": str(scratch / "work"),
        }

    def check(self) -> None:
        """Raises `Misuse` when Spark's own ports would be open to everybody, and nobody has said that this is wanted:
        whoever may speak to a driver or an executor can run code there."""
        if not (self.is_alone or self._brings_secret or _AUTHENTICATE in self.own):
            raise Misuse(
                f"Spark's own ports on {self.host} would be open to everybody who reaches them: write --spark-conf "
                "spark.authenticate=true, with the secret of master and workers in SPARK_CONF_DIR/spark-defaults.conf; "
                "or --spark-conf spark.authenticate=false, if nobody else can."
            )

    def conf(self, scratch: Path) -> dict[str, str]:
        """All settings, for a Spark whose own files are in `scratch`."""
        return {
            _HOST: self.host,
            "spark.driver.bindAddress": self.host,
            "spark.driver.memory": "512m",
            "spark.local.dir": str(scratch),
            "spark.ui.showConsoleProgress": "false",
            "spark.speculation": "false",  # a second copy of a shard would only fence the first
            _FAILURES: str(TASK_FAILURES),
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
            "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # others do not read Spark's own kind
            "spark.sql.python.filterPushdown.enabled": "true",  # our formats read less for it
            **({} if self.is_local else _OF_A_CLUSTER),
            **({"spark.executorEnv.PYTHONPATH": os.pathsep.join(self.path)} if self.path else {}),
            **({"spark.executorEnv.SPARK_LOCAL_IP": _LOOPBACK} if self.is_alone else self._closed()),
            **self.own,
        }

    @property
    def _brings_secret(self) -> bool:
        """YARN and Kubernetes bring a secret to the executors by themselves; others have to be given one."""
        return self.master.startswith(("yarn", "k8s://"))

    def _closed(self) -> dict[str, str]:
        closed = self.own.get(_AUTHENTICATE, "true") == "true"
        crypto = {_AUTHENTICATE: "true", "spark.network.crypto.enabled": "true"} if closed else {}
        return {**crypto, "spark.ui.enabled": "false"}  # Spark's page knows no secret
