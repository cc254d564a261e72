"""The processes of a long run: the app on Spark, and clients, each of which can be killed, paused and started again."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from tests.chaos.storm import LEDGER, PARTITIONS, ROOT, SHARDS

# Three starts of a cluster on a machine that has no time for them: Spark waits a minute for its executors in each.
START_S = 900.0
# What a killed driver leaves behind ends by itself once it notices; beyond this it is ended here.
_ORPHANS_S = 60.0


class Application:
    """`engram run` on a port that stays the same, over its restarts too."""

    def __init__(self, log: str, folder: Path, master: str) -> None:
        self._log = log
        self._folder = folder
        self.master = master
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self._port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self.starts = 0
        self._process: subprocess.Popen[str] | None = None
        self._ready = threading.Event()
        self.orphans = 0  # processes of a killed driver that had to be ended

    def start(self) -> None:
        """Starts it; `wait_ready` waits."""
        command = [sys.executable, "-m", "engram.cli.main", "run", LEDGER, "--log", self._log, "--json"]
        command += ["--port", str(self._port), "--shards", str(SHARDS), "--partitions", str(PARTITIONS)]
        command += ["--snapshots", str(self._folder / "snapshots"), "--snapshot-every", "500", "--snapshot-pause", "1"]
        self._ready.clear()
        self.starts += 1
        output = (self._folder / f"app-{self.starts}.err").open("w")
        self._process = subprocess.Popen(
            [*command, "--master", self.master], cwd=ROOT, stdout=subprocess.PIPE, stderr=output, text=True
        )
        output.close()
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()

    def wait_ready(self) -> None:
        """Starts it again if Spark had no executors in time, as on a machine that is busy with other things."""
        deadline = time.monotonic() + START_S
        while not self._ready.wait(0.5):
            assert self._process is not None
            slow = "task slots" in self._said()
            if slow and self._process.poll() is not None and time.monotonic() < deadline:
                self.start()
            elif self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the app did not start (exit {self._process.poll()}): {self._said()[-2000:]}")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def executors(self) -> list[int]:
        """The executors' JVMs; none of its own has a local master."""
        return [p.pid for p in _children(self.pid) if "CoarseGrainedExecutorBackend" in " ".join(_command(p))]

    def jvm(self) -> int:
        """The driver's JVM: Spark itself, and on a local master the executor too."""
        return next(p.pid for p in _children(self.pid) if "SparkSubmit" in " ".join(_command(p)))

    def daemons(self) -> list[int]:
        """Those that Spark forks its Python processes from; each is the child of a JVM, and its forks look like it."""
        forks = {p.pid: p for p in _children(self.pid) if "pyspark.daemon" in _command(p)}
        return [pid for pid, p in forks.items() if p.ppid() not in forks]

    def kill(self) -> None:
        """SIGKILL for the driver, gateway and all. What it had started goes too, by itself if it can."""
        children = _children(self.pid)
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._see_off(children)

    def kill_jvm(self) -> None:
        """SIGKILL for the driver's JVM. The app must end by itself, and say that Spark was lost."""
        children = _children(self.pid)
        os.kill(self.jvm(), signal.SIGKILL)
        assert self._process is not None
        self._process.wait(START_S)
        said = self._said()
        assert "Spark was lost" in said, f"the app ended without its JVM, and said: {said[-2000:]}"
        self._see_off(children)

    def kill_executor(self, pid: int) -> None:
        """SIGKILL for an executor's JVM. Its shards go on for a moment: only then is there anything to recover from."""
        children = _children(pid)
        with suppress(ProcessLookupError):  # it may have gone with another
            os.kill(pid, signal.SIGKILL)
        self._see_off(children)

    def _said(self) -> str:
        return (self._folder / f"app-{self.starts}.err").read_text()

    def _see_off(self, children: list[psutil.Process]) -> None:
        _, left = psutil.wait_procs(children, timeout=_ORPHANS_S)
        self.orphans += len(left)
        for process in left:
            process.kill()
        psutil.wait_procs(left)

    def stop(self) -> None:
        """A clean stop, with a last snapshot of every partition."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(START_S)
            except subprocess.TimeoutExpired:
                self.kill()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            told: dict[str, Any] = json.loads(line)
            if told["event"] == "ready":
                self._ready.set()


class Writers:
    """One client process; started again under another name, with keys of its own, when it was killed."""

    def __init__(self, url: str, folder: Path, number: int, keys: int) -> None:
        self._url = url
        self._folder = folder
        self._number = number
        self._keys = keys
        self.generation = 0
        self._before = 0  # acknowledged by those that are gone
        self._now = 0
        self.start()

    @property
    def acknowledged(self) -> int:
        return self._before + self._now

    @property
    def acknowledged_by_this(self) -> int:
        return self._now

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self) -> None:
        self.generation += 1
        self._before, self._now = self._before + self._now, 0
        name = f"client{self._number}-{self.generation}"
        command = [sys.executable, "-m", "tests.chaos.writer", self._url, name]
        command += [str(self._folder / f"{name}.jsonl"), str(self._keys)]
        output = (self._folder / f"{name}.err").open("w")
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=output, text=True)
        output.close()
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Waits until everything that was sent is heard of."""
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(START_S)
        said = (self._folder / f"client{self._number}-{self.generation}.err").read_text()[-2000:]
        assert code == 0, f"a client ended with {code}: {said}"

    def close(self) -> None:
        if self._process.poll() is None:
            self.kill()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if process is self._process:
                self._now = int(line)


def pause(pid: int, seconds: float, wait: Callable[[float], None]) -> None:
    """SIGSTOP, and SIGCONT after a while."""
    os.kill(pid, signal.SIGSTOP)
    try:
        wait(seconds)
    finally:
        os.kill(pid, signal.SIGCONT)


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []
