"""`engram tail`: the events of a log as they leave, or its records."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from engram.codec.record import Kind
from engram.dev.kafka import Brokers
from engram.log.base import Entry
from engram.log.cursor import Cursor
from engram.log.open import open_log
from engram.log.sqlite import SqliteLog

from tests.cli.saying import Engram, sentence
from tests.log.emitting import NOON, emit

ROOT = Path(__file__).parents[2]
SOCIAL = "sample_apps.social:app"
Tail = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log of two partitions with three events."""
    with closing(SqliteLog(tmp_path / "log.db", "social", partitions=2, create=True)) as log:
        emit(log, [1, 0, 1])
    return tmp_path / "log.db"


@pytest.fixture
def tail(path: Path) -> Iterator[Tail]:
    """Starts `engram tail` as a process of its own; it is ended with the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*options: str, log: str = f"sqlite:{path}") -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "engram.cli.main", "tail", SOCIAL, "--log", log, *options]
        wide = {**os.environ, "COLUMNS": "200"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(command, cwd=ROOT, env=wide, text=True, bufsize=1, **pipes))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def told(process: subprocess.Popen[str], count: int) -> list[dict[str, Any]]:
    assert process.stdout is not None
    return [json.loads(process.stdout.readline()) for _ in range(count)]


def ended(process: subprocess.Popen[str], number: int = signal.SIGINT) -> tuple[int, str, str]:
    process.send_signal(number)
    rest, problems = process.communicate(timeout=30)
    return process.returncode, rest, problems


def test_events_are_shown_as_they_come_until_ctrl_c(tail: Tail, path: Path):
    """A line for each that is new: id, time, name, key and body; at the end, exit code 0 and where to go on."""
    process = tail("--events")
    assert process.stderr is not None
    assert process.stdout is not None
    ready = process.stderr.readline()
    with closing(SqliteLog(path, "social")) as log:
        emit(log, [0], key="\x1b[2J")
        first = process.stdout.readline()
        emit(log, [1])
        second = process.stdout.readline()
    code, rest, said = ended(process)

    assert ready == "social: events of 2 partitions (Ctrl-C stops)\n"
    assert first == (
        '0:1.0.0      2023-11-14T22:13:20.000Z  followed v1  \\x1b[2J  {"who":"\\u001b[2J","whom":"bob"}\n'
    )
    assert second == '1:2.0.0      2023-11-14T22:13:20.000Z  followed v1  ada  {"who":"ada","whom":"bob"}\n'
    assert (code, rest) == (0, "")
    assert said.startswith("to go on from here: --after social.2~0:1.0.0~1:2.0.0~")
    assert not path.with_name("log.db-wake").exists()


def test_from_the_start_all_events_are_shown_by_time(tail: Tail, path: Path):
    """As JSON with all that is known; SIGTERM ends it as well, and says nothing."""
    process = tail("--events", "--from-start", "--json")
    before = told(process, 3)
    with closing(SqliteLog(path, "social")) as log:
        emit(log, [0] * 300, time=NOON + 100)
        after = told(process, 300)

    assert ended(process, signal.SIGTERM) == (0, "", "")
    assert [event["id"] for event in before] == ["1:0.0.0", "0:0.0.0", "1:1.0.0"]
    assert [event["id"] for event in after] == [f"0:{offset}.0.0" for offset in range(1, 301)]
    assert before[0] == {
        "id": "1:0.0.0",
        "time": "2023-11-14T22:13:20.000Z",
        "name": "followed",
        "version": 1,
        "key": "ada",
        "body": {"who": "ada", "whom": "bob"},
        "cause": "1:0.0",
        "root": "0:0.0",
        "cursor": before[0]["cursor"],
    }


def test_a_cursor_leads_on(tail: Tail):
    """Each event's own is where to begin after it."""
    first = tail("--events", "--from-start", "--json")
    one, two, _ = told(first, 3)
    ended(first)
    second = tail("--events", "--json", "--after", one["cursor"])
    rest = told(second, 2)
    ended(second)

    assert [event["id"] for event in rest] == [two["id"], "1:1.0.0"]


def test_without_events_it_is_log_tail(tail: Tail, path: Path):
    """The records, from the start or from now on, of a partition if told."""
    process = tail("--from-start", "--json", "--partition", "1")
    before = told(process, 2)
    with closing(SqliteLog(path, "social")) as log:
        log.append([Entry(0, Kind.TICK, NOON, b""), Entry(1, Kind.TICK, NOON, b"")])
        after = told(process, 1)

    assert ended(process) == (0, "", "")
    assert [(record["position"], record["kind"]) for record in before + after] == [
        ("1:0", "tick"),
        ("1:1", "tick"),
        ("1:2", "tick"),
    ]


def test_events_of_a_kafka_log_are_shown_too(tail: Tail, kafka: Brokers):
    """What was there and what another process lets out, until Ctrl-C."""
    url = kafka.url(f"tail-events-{uuid4().hex[:8]}")
    with closing(open_log(url, "social", partitions=2, create=True)) as log:
        emit(log, [0, 1])
        process = tail("--events", "--from-start", "--json", log=url)
        before = told(process, 2)
        (event,) = emit(log, [1])
        (after,) = told(process, 1)

    assert sorted(event["cause"] for event in before) == ["0:0.0", "1:0.0"]
    assert after["cause"] == f"1:{event.offset}.0"
    assert ended(process) == (0, "", "")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--events", "--after", "x"], "'x' is not a cursor, or is not whole"),
        (
            ["--events", "--after", str(Cursor("shop", 2))],
            "The cursor is of app shop with 2 partitions; this is social",
        ),
        (
            ["--events", "--after", "start", "--from-start"],
            "--after and --from-start exclude each other: leave one out.",
        ),
        (["--events", "--partition", "1"], "--partition is not for events, which are one stream: leave it out."),
        (["--after", "start"], "--after is for events: add --events."),
        (["--partition", "2"], "There is no partition 2: the log has 0 to 1."),
    ],
)
def test_a_mistake_is_one_sentence(engram: Engram, path: Path, options: list[str], said: str):
    """With what to write instead."""
    assert said in sentence(engram("tail", SOCIAL, "--log", f"sqlite:{path}", *options), 2)


def test_a_log_that_is_not_there_is_not_made(engram: Engram, tmp_path: Path):
    """To look at events makes nothing."""
    said = sentence(engram("tail", SOCIAL, "--log", "sqlite:nowhere.db", "--events"), 2)

    assert "There is no log at" in said
    assert list(tmp_path.iterdir()) == []
