"""A real S3 server on loopback, as a process that a test can pause, and its bucket."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

STARTED_S = 60.0


class S3Server:
    """`moto`'s server. It forgets everything at its end."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    @property
    def environment(self) -> dict[str, str]:
        """What a client of it needs to know."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "tester",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def make_bucket(self, name: str) -> None:
        """By plain HTTP, as soon as it answers."""
        deadline = time.monotonic() + STARTED_S
        while True:
            try:
                urllib.request.urlopen(urllib.request.Request(f"{self.url}/{name}", method="PUT"), timeout=10).close()
            except OSError:
                assert self._process.poll() is None, "the S3 server has ended"
                assert time.monotonic() < deadline, "the S3 server did not start in time"
                time.sleep(0.05)
            else:
                return

    def pause(self) -> None:
        """It does not answer from now on, and connections stay open."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def close(self) -> None:
        self.go_on()
        self._process.kill()
        self._process.wait()


@contextmanager
def s3_server() -> Iterator[S3Server]:
    server = S3Server()
    try:
        server.make_bucket("snapshots")
        yield server
    finally:
        server.close()
