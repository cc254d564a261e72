"""`engram dev kafka`: the same brokers for an app's author."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from engram.dev.metadata import ask_cluster

from tests.dev.left import eventually, running

COMMAND = [sys.executable, "-m", "engram.cli.main", "dev", "kafka"]
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts the command; it is ended with the test."""
    started: list[subprocess.Popen[str]] = []

    def start_one(*options: str) -> subprocess.Popen[str]:
        started.append(
            subprocess.Popen(
                [*COMMAND, *options], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
        return started[-1]

    yield start_one
    for process in started:
        process.kill()
        process.communicate()


def below(process: subprocess.Popen[str]) -> list[int]:
    return [child.pid for child in psutil.Process(process.pid).children(recursive=True)]


def runs_kafka(pid: int) -> bool:
    try:
        return "kafka.Kafka" in psutil.Process(pid).cmdline()
    except psutil.NoSuchProcess:
        return False


def lines(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().rstrip("\n") for _ in range(count)]


@pytest.mark.usefixtures("kafka_at_hand")
def test_it_tells_an_address_that_answers_and_ctrl_c_ends_it(start: Start):
    """The printed URL leads to a broker, the printed process is that broker, and after SIGINT nothing is left."""
    process = start()
    ready, address, broker = lines(process, 3)
    family = below(process)
    (url,) = re.findall(r"--log kafka://127\.0\.0\.1:(\d+)/TOPIC", address)
    (pid,) = re.findall(r"broker 0 +process (\d+)", broker)
    cluster = ask_cluster(int(url), 10.0)
    folder = Path(psutil.Process(int(pid)).cwd())
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)

    assert re.fullmatch(r"Kafka [\d.]+ is ready in [\d.]+ s, and keeps nothing \(Ctrl-C stops\)\.", ready)
    assert cluster.brokers == {0}
    assert int(pid) in family
    assert (process.returncode, out, err) == (0, "", "")
    assert running(family) == []
    assert not folder.exists()


@pytest.mark.usefixtures("kafka_at_hand")
def test_three_brokers_are_told_as_json_and_sigterm_ends_them(start: Start):
    """One line of JSON has the addresses and the process ids of all three."""
    process = start("--brokers", "3", "--json")
    (line,) = lines(process, 1)
    told = json.loads(line)
    family = below(process)
    clusters = [ask_cluster(int(address.partition(":")[2]), 10.0) for address in told["bootstrap"].split(",")]
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)

    assert told["event"] == "ready"
    assert told["url"] == f"kafka://{told['bootstrap']}/TOPIC"
    assert [cluster.brokers for cluster in clusters] == [{0, 1, 2}] * 3
    assert set(told["pids"]) < set(family)
    assert (process.returncode, out, err) == (0, "", "")
    assert running(family) == []


@pytest.mark.usefixtures("kafka_at_hand")
def test_ctrl_c_while_it_starts_leaves_nothing(start: Start):
    """It does not have to be ready to be stopped."""
    process = start("--brokers", "2")
    assert eventually(lambda: any(runs_kafka(pid) for pid in below(process)), 60)
    family = below(process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)

    assert (process.returncode, out, err) == (0, "", "")
    assert running(family) == []


def test_without_maven_it_says_what_to_do(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One sentence on stderr and the exit code for "not now", when there are no jars and no Maven to fetch them."""
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("ENGRAM_KAFKA_JARS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", os.fspath(tmp_path / "bin"))
    process = start()
    out, err = process.communicate(timeout=30)

    assert (process.returncode, out) == (3, "")
    assert err == (
        "engram: Kafka's jars are fetched by Maven, and there is no mvn on the PATH: install it (Debian: apt-get "
        "install maven), or set ENGRAM_KAFKA_JARS to a folder that holds the jars of a Kafka (such as libs/ of its "
        "distribution).\n"
    )
