"""Kafka's jars: fetched once, whole or not at all. The Maven of these tests is a script."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from engram.dev.jars import KAFKA_VERSION, kafka_jars
from engram.errors import Misuse, Unavailable

Maven = Callable[[str], Path]
# Makes the jars where it is told to. The last argument is -DoutputDirectory=FOLDER.
FETCHES = 'for last; do :; done; mkdir "${last#*=}"; touch "${last#*=}/kafka_2.13-x.jar"'


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the jars will be; nothing is there yet."""
    monkeypatch.delenv("ENGRAM_KAFKA_JARS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "engram" / f"kafka-{KAFKA_VERSION}"


@pytest.fixture
def maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Maven:
    """Puts a script on the PATH as `mvn`; it adds a line to the returned file each time it is started."""

    def install(script: str) -> Path:
        started = tmp_path / "started"
        program = tmp_path / "bin" / "mvn"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\necho started >> {started}\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
        return started

    return install


def test_the_first_call_fetches_and_says_so(cache: Path, maven: Maven, capsys: pytest.CaptureFixture[str]):
    """The jars are in the user's cache, and stderr tells why it takes a while; the second call does neither."""
    started = maven(FETCHES)
    first, said = kafka_jars(), capsys.readouterr().err
    second, said_again = kafka_jars(), capsys.readouterr().err

    assert first == second == cache
    assert [jar.name for jar in cache.iterdir()] == ["kafka_2.13-x.jar"]
    assert said.startswith(f"Fetching Kafka {KAFKA_VERSION} by Maven into {cache}")
    assert said_again == ""
    assert started.read_text() == "started\n"


def test_without_maven_the_way_out_is_told(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The sentence says what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(Unavailable, match=r"no mvn on the PATH: install it .* or set ENGRAM_KAFKA_JARS"):
        kafka_jars()


def test_a_maven_that_reaches_nothing_is_tried_three_times(cache: Path, maven: Maven):
    """Then the sentence has Maven's own words, and nothing half-made is left."""
    started = maven("printf '\\033[0m[ERROR] Could not transfer artifact: Unknown host\\n[ERROR] \\n'; exit 1")

    with pytest.raises(
        Unavailable, match=r"in 3 tries \(Could not transfer artifact: Unknown host\): check the network"
    ):
        kafka_jars()
    assert started.read_text() == "started\n" * 3
    assert [left.suffix for left in cache.parent.iterdir()] == [".lock"]


def test_a_fetch_that_fails_once_is_done_again(cache: Path, maven: Maven, tmp_path: Path):
    """Half of the jars of a first try are not taken for all of them."""
    once = tmp_path / "once"
    maven(f"{FETCHES}; test -e {once} && exit 0; touch {once}; exit 1")

    assert any(kafka_jars().glob("*.jar"))


def test_what_a_killed_fetch_left_is_removed(cache: Path, maven: Maven):
    """It is not used, and does not stay."""
    left = cache.parent / f"{cache.name}-unfinished-x"
    left.mkdir(parents=True)
    maven(FETCHES)
    kafka_jars()

    assert not left.exists()


def test_two_processes_fetch_once(cache: Path, maven: Maven):
    """The second waits for the first, and finds the jars."""
    started = maven(f"{FETCHES}; sleep 0.3")
    program = "from engram.dev.jars import kafka_jars; print(kafka_jars())"
    both = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(2)]

    assert [process.communicate()[0].strip() for process in both] == [str(cache)] * 2
    assert started.read_text() == "started\n"


def test_a_named_folder_is_used_instead(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """ENGRAM_KAFKA_JARS wins, and no Maven is needed."""
    (tmp_path / "kafka_2.13-4.0.0.jar").touch()
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("ENGRAM_KAFKA_JARS", str(tmp_path))

    assert kafka_jars() == tmp_path


def test_a_named_folder_without_jars_is_refused(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A mistake in ENGRAM_KAFKA_JARS is told, not worked around."""
    monkeypatch.setenv("ENGRAM_KAFKA_JARS", str(tmp_path))

    with pytest.raises(Misuse, match=r"ENGRAM_KAFKA_JARS is .*, and no kafka_\*\.jar is there"):
        kafka_jars()
