"""`engram doctor`: what a run needs, looked at one by one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.saying import Engram, Java


def _checks(output: str) -> dict[str, tuple[bool, str]]:
    return {row["check"]: (row["ok"], row["found"]) for row in json.loads(output)}


def test_when_all_is_well_the_exit_code_is_0(engram: Engram, java: Java, free_port: int, tmp_path: Path):
    """The table has a line for each check, each of them ok."""
    path = java("17.0.9")
    result = engram("doctor", "--port", free_port, "--folder", tmp_path)

    assert result.exit_code == 0, result.stdout
    assert "PROBLEM" not in result.stdout
    for check in ("Python", "Java", "pyspark", "SQLite", f"port {free_port}", "folder"):
        assert check in result.stdout
    assert f"17 ({path})" in result.stdout.replace("\n", "")


def test_json_has_the_same_checks(engram: Engram, java: Java, free_port: int, tmp_path: Path):
    """`--json` is a list of checks, with whether each is ok and what was found."""
    java("21")
    result = engram("doctor", "--port", free_port, "--folder", tmp_path, "--json")

    checks = _checks(result.stdout)
    assert result.exit_code == 0
    assert all(ok for ok, _ in checks.values())
    assert checks["Java"][1].startswith("21 (")
    assert checks["folder"][1].startswith(str(tmp_path))


def test_a_taken_port_is_a_problem(engram: Engram, java: Java, taken_port: int, tmp_path: Path):
    """A port that somebody listens on is named, with the way out, and the exit code is 2."""
    java("17")
    table = engram("doctor", "--port", taken_port, "--folder", tmp_path)
    checks = _checks(engram("doctor", "--port", taken_port, "--folder", tmp_path, "--json").stdout)

    assert (table.exit_code, table.stdout.count("PROBLEM")) == (2, 1)
    ok, found = checks[f"port {taken_port}"]
    assert not ok
    assert f"127.0.0.1:{taken_port} cannot be used" in found
    assert "choose another with --port" in found


def test_missing_and_old_java_are_problems(engram: Engram, java: Java, monkeypatch: pytest.MonkeyPatch, free_port: int):
    """The doctor says what to install; the other checks are made all the same."""
    java("11.0.2")
    old = engram("doctor", "--port", free_port, "--json")
    monkeypatch.setenv("PATH", "/nowhere")
    missing = engram("doctor", "--port", free_port, "--json")

    for result, word in ((old, "is version 11"), (missing, "There is no java on the PATH")):
        assert result.exit_code == 2
        ok, found = _checks(result.stdout)["Java"]
        assert not ok
        assert word in found
        assert "openjdk-17" in found
        assert _checks(result.stdout)["Python"][0]


@pytest.mark.parametrize("kind", ["missing", "file"])
def test_a_folder_that_is_none_is_a_problem(engram: Engram, java: Java, free_port: int, tmp_path: Path, kind: str):
    """Neither a folder that is not there nor a file can keep logs."""
    java("17")
    folder = tmp_path / kind
    if kind == "file":
        folder.touch()
    result = engram("doctor", "--port", free_port, "--folder", folder, "--json")

    ok, found = _checks(result.stdout)["folder"]
    assert (result.exit_code, ok) == (2, False)
    assert str(folder) in found
