"""`engram doctor`: what a run needs, looked at one by one, with the way out of each problem."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import socket
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

from engram.cli.output import REFUSED, say_json, show_table
from engram.errors import Misuse
from engram.spark.java import java_version

_PACKAGES = ["engram", "pyspark", "pydantic", "pyarrow", "pyzmq", "fastapi", "uvicorn"]
_ENOUGH_DISK = 1 << 30


def examine(folder: Path, port: int, *, json: bool) -> None:
    """Prints a table and ends with an exit code of 0 only when all is well."""
    checks: list[tuple[str, Callable[[], str]]] = [
        ("Python", _python),
        ("Java", _java),
        *((name, _package(name)) for name in _PACKAGES),
        ("SQLite", lambda: sqlite3.sqlite_version),
        ("loopback", lambda: _port(0)),
        (f"port {port}", lambda: _port(port)),
        ("folder", lambda: _folder(folder.absolute())),
        ("cores", lambda: f"{os.cpu_count()}: up to as many shards run side by side"),
    ]
    rows = [_check(name, look) for name, look in checks]
    if json:
        say_json([{"check": name, "ok": ok, "found": found} for name, ok, found in rows])
    else:
        show_table("engram doctor", ["check", "", "found"], [[n, "ok" if ok else "PROBLEM", f] for n, ok, f in rows])
    if not all(ok for _, ok, _ in rows):
        raise SystemExit(REFUSED)


def _check(name: str, look: Callable[[], str]) -> tuple[str, bool, str]:
    try:
        return name, True, look()
    except Misuse as problem:
        return name, False, str(problem)


def _python() -> str:
    return f"{platform.python_version()} ({sys.executable})"


def _java() -> str:
    java, version = java_version()
    return f"{version} ({java})"


def _package(name: str) -> Callable[[], str]:
    def look() -> str:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            raise Misuse(f"{name} is not installed: pip install {name}") from None

    return look


def _port(port: int) -> str:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as problem:
            raise Misuse(f"127.0.0.1:{port} cannot be used ({problem.strerror}): choose another with --port.") from None
    return "free" if port else "can be listened on"


def _folder(folder: Path) -> str:
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise Misuse(f"{folder} is not a folder that can be written to.")
    free = shutil.disk_usage(folder).free
    if free < _ENOUGH_DISK:
        raise Misuse(f"{folder} has only {free >> 20} MiB free: logs and snapshots need room.")
    return f"{folder}, {free >> 30} GiB free"
