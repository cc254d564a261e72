"""A Redis of our own on loopback, to compare with; from Debian's packages, if it is there or may be installed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

import redis

INSTALL = "ENGRAM_BENCH_INSTALL"
_START_S = 20.0


@contextmanager
def redis_server() -> Iterator[redis.Redis | None]:
    """A client of a new, empty server that writes nothing to disk; None, with a note, where there is no Redis."""
    program = _program()
    if program is None:
        yield None
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        quiet = ["--save", "", "--appendonly", "no", "--loglevel", "warning", "--dir", folder]
        server = subprocess.Popen(
            [program, "--bind", "127.0.0.1", "--port", str(port), *quiet], stdout=subprocess.DEVNULL
        )
        client = redis.Redis(host="127.0.0.1", port=port)
        try:
            _wait_for(client)
            yield client
        finally:
            client.close()
            server.terminate()
            server.wait(_START_S)


def _program() -> str | None:
    if shutil.which("redis-server") is None and os.environ.get(INSTALL) == "1":
        for words in (["update"], ["install", "-y", "redis-server"]):  # a new machine has no list of packages
            done = subprocess.run(["apt-get", *words], capture_output=True, check=False, text=True)
        if done.returncode:
            print(f"  redis-server could not be installed: {done.stderr.strip()[-200:]}", file=sys.stderr)
    program = shutil.which("redis-server")
    if program is None:
        print(
            f"  There is no redis-server here, so nothing is compared with it: {INSTALL}=1 installs it from Debian's"
            " packages.",
            file=sys.stderr,
        )
    return program


def _wait_for(client: redis.Redis) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        try:
            client.ping()
        except redis.ConnectionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return
