from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from click.testing import Result
from engram.cli.main import app
from typer.testing import CliRunner

from tests.cli.saying import Engram, Java


@pytest.fixture
def engram(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Engram]:
    """Runs the command line in this process, in an empty folder: `engram("send", "register", "ada")`."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    runner = CliRunner()

    def run(*arguments: object) -> Result:
        return runner.invoke(app, [str(argument) for argument in arguments])

    yield run
    structlog.reset_defaults()  # `engram run` lets its log lines out on a stderr that is gone now


@pytest.fixture
def java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Java:
    """Puts a program on the PATH that says it is a Java of some version. Spark could not start with it."""
    monkeypatch.delenv("JAVA_HOME", raising=False)

    def install(version: str) -> Path:
        path = tmp_path / "fake-java" / "java"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}/usr/bin{os.pathsep}/bin")
        return path

    return install
