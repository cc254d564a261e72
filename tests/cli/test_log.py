"""`engram log show`, `tail` and `copy`: what is in a log, as it lies there, and the same log elsewhere."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from engram.codec.record import (
    Envelope,
    Epoch,
    Kind,
    Origin,
    PlainHeader,
    encode_commands,
    encode_epoch,
    encode_messages,
    encode_plain,
)
from engram.dev.kafka import Brokers
from engram.log.base import Entry
from engram.log.open import open_log
from engram.log.sqlite import SqliteLog
from engram.model.effects import Message, OutEvent

from tests.cli.saying import Engram, sentence

ROOT = Path(__file__).parents[2]
SOCIAL = "sample_apps.social:app"
NOON = 1_700_000_000_000
LONG = "once upon a time " * 25


def register(key: str, name: str = "Ada", **more: Any) -> Envelope:
    return Envelope("register", 1, key, json.dumps({"name": name}).encode(), "s1", 3, **more)


def commands(partition: int, time: int, *envelopes: Envelope) -> Entry:
    return Entry(partition, Kind.COMMANDS, time, encode_commands(envelopes, "gateway-7"))


STORY = [
    Entry(0, Kind.EPOCH, NOON, encode_epoch(Epoch(owner="0-1", app_version=1, address="tcp://x"))),
    commands(0, NOON + 1, register("bob"), Envelope("publish", 1, "bob", json.dumps({"text": LONG}).encode(), "s2", 0)),
    Entry(1, Kind.NOTHING, 0, b""),
    Entry(0, Kind.COMMANDS, NOON + 2, b"garb\xffage"),
    Entry(
        0,
        Kind.MESSAGES,
        NOON + 3,
        encode_messages([Message("gain_follower", 1, "bob", b'{"by":"ada"}', Origin(1, 0, 2))], 1),
        (1, Origin(1, 0, 2)),
    ),
    Entry(1, Kind.PLAIN, NOON + 4, encode_plain(PlainHeader(name="register", version="1", key="cy"), b'{"name":"Cy"}')),
    Entry(1, Kind.PLAIN, NOON + 5, encode_plain(PlainHeader(name="", version="", key="dan"), b"{}")),
    commands(0, NOON + 6, register("eve", idempotency_key="once")),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log of two partitions with one record of every kind, and two that cannot be decoded."""
    with closing(SqliteLog(tmp_path / "log.db", "social", partitions=2, create=True)) as log:
        log.append(STORY)
    return tmp_path / "log.db"


@pytest.fixture
def shown(engram: Engram, path: Path) -> Callable[..., list[dict[str, Any]]]:
    """What `engram log show --json` prints."""

    def show(*options: object) -> list[dict[str, Any]]:
        result = engram("log", "show", SOCIAL, "--log", f"sqlite:{path}", "--json", *options)
        assert (result.exit_code, result.stderr) == (0, ""), result.output
        return list(map(json.loads, result.stdout.splitlines()))

    return show


def positions(records: list[dict[str, Any]]) -> list[str]:
    return [record["position"] for record in records]


# show


def test_show_prints_a_line_for_each_record_and_command(engram: Engram, path: Path, monkeypatch: pytest.MonkeyPatch):
    """Position, kind, time and who wrote it; index, name, version, key and body, cut to the width of the terminal."""
    monkeypatch.setenv("COLUMNS", "90")
    result = engram("log", "show", SOCIAL, "--log", f"sqlite:{path}")

    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "1:0        nothing",
        "0:0        epoch    2023-11-14T22:13:20.000Z  owner 0-1 at tcp://x, app version 1",
        "0:1        commands 2023-11-14T22:13:20.001Z  by gateway-7",
        '    .0    register v1  bob  {"name":"Ada"}',
        '    .1    publish v1  bob  {"text":"once upon a time once upon a time once upon a time on…',
        "0:2        commands 2023-11-14T22:13:20.002Z",
        "    PROBLEM Record 2 of partition 0 cannot be decoded: JSON is malformed: invalid charact…",
        "    garb\\xffage",
        "0:3        messages 2023-11-14T22:13:20.003Z  from partition 1",
        '    .0    gain_follower v1  bob  {"by":"ada"}',
        "1:1        plain    2023-11-14T22:13:20.004Z",
        '    .0    register v1  cy  {"name":"Cy"}',
        "1:2        plain    2023-11-14T22:13:20.005Z",
        "    PROBLEM Record 2 of partition 1 cannot be decoded: it has no header `name`: write the…",
        '    {"name":"","version":"","key":"dan"}\\n{}',
        "0:4        commands 2023-11-14T22:13:20.006Z  by gateway-7",
        '    .0    register v1  eve  {"name":"Ada"}',
    ]


def test_json_has_all_that_is_in_a_record(shown: Callable[..., list[dict[str, Any]]]):
    """An object a line, nothing cut, with sessions, idempotency keys and origins; or the problem, and the payload."""
    nothing, epoch, two, spoilt, messages, plain, _, last = shown()

    assert nothing == {"position": "1:0", "kind": "nothing", "time": 0, "bytes": 0}
    assert epoch == {
        "position": "0:0",
        "kind": "epoch",
        "time": NOON,
        "bytes": len(STORY[0].payload),
        "owner": "0-1",
        "app_version": 1,
        "address": "tcp://x",
    }
    assert two["writer"] == "gateway-7"
    assert two["commands"] == [
        {
            "index": 0,
            "name": "register",
            "version": 1,
            "key": "bob",
            "body": {"name": "Ada"},
            "session": "s1",
            "sequence": 3,
        },
        {
            "index": 1,
            "name": "publish",
            "version": 1,
            "key": "bob",
            "body": {"text": LONG},
            "session": "s2",
            "sequence": 0,
        },
    ]
    assert spoilt["problem"].startswith("Record 2 of partition 0 cannot be decoded: ")
    assert spoilt["payload"] == "garb\\xffage"
    assert (messages["origin_partition"], messages["commands"][0]["origin"]) == (1, "1:1.0.2")
    assert (plain["commands"][0]["key"], plain["commands"][0]["body"]) == ("cy", {"name": "Cy"})
    assert last["commands"][0]["idempotency_key"] == "once"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), ["1:0", "0:0", "0:1", "0:2", "0:3", "1:1", "1:2", "0:4"]),
        (("--limit", 3), ["1:0", "0:0", "0:1"]),
        (("--partition", 1), ["1:0", "1:1", "1:2"]),
        (("--partition", 0, "--from", 2, "--limit", 2), ["0:2", "0:3"]),
        (("--from", 2), ["0:2", "0:3", "1:2", "0:4"]),
        (("--from", -1), ["1:2", "0:4"]),
        (("--from", -99, "--partition", 1), ["1:0", "1:1", "1:2"]),
        (("--from", 5), []),
    ],
)
def test_a_part_of_the_log_can_be_chosen(
    shown: Callable[..., list[dict[str, Any]]], options: tuple[object, ...], expected: list[str]
):
    """By partition, first offset (from the end, if negative) and number; several partitions by their times."""
    assert positions(shown(*options)) == expected


def test_twenty_records_are_shown_unless_told(shown: Callable[..., list[dict[str, Any]]], path: Path):
    """Whatever else there is; and a higher limit shows them all, over several reads."""
    with closing(SqliteLog(path, "social")) as log:
        log.append([Entry(1, Kind.NOTHING, NOON, b"")] * 500)

    assert len(shown()) == 20
    assert positions(shown("--partition", 1, "--limit", 1000)) == [f"1:{offset}" for offset in range(503)]


def test_a_clock_that_went_back_does_not_change_the_order(shown: Callable[..., list[dict[str, Any]]], path: Path):
    """Records of one partition are shown in its order, whatever their times say."""
    with closing(SqliteLog(path, "social")) as log:
        log.append([commands(1, NOON + 100 - step, register("cy")) for step in range(5)])

    assert [p for p in positions(shown()) if p.startswith("1:")] == [f"1:{offset}" for offset in range(8)]


def test_where_there_is_nothing_the_ends_are_told(engram: Engram, path: Path):
    """Otherwise nobody knows what to ask for."""
    result = engram("log", "show", SOCIAL, "--log", f"sqlite:{path}", "--from", 7)

    assert (result.exit_code, result.stdout) == (0, "No records there: partition 0 ends at 5, partition 1 ends at 3.\n")


def test_control_characters_do_not_reach_the_terminal(engram: Engram, path: Path):
    """What a client put into a key or a body is shown, and not obeyed."""
    with closing(SqliteLog(path, "social")) as log:
        log.append([commands(1, NOON, register("\x1b[2J", "\u202eA\x9b2J"))])
    result = engram("log", "show", SOCIAL, "--log", f"sqlite:{path}", "--from", 3, "--partition", 1)

    assert '    .0    register v1  \\x1b[2J  {"name":"\\u202eA\\x9b2J"}' in result.stdout.splitlines()


def test_a_time_that_is_none_is_shown_as_a_number(engram: Engram, path: Path):
    """A listing does not end at a record whose time no calendar has."""
    with closing(SqliteLog(path, "social")) as log:
        log.append([Entry(1, Kind.COMMANDS, 10**17, b"x")])
    result = engram("log", "show", SOCIAL, "--log", f"sqlite:{path}", "--partition", 1)

    assert f"1:3        commands {10**17} ms" in result.stdout.splitlines()


# Refusals


@pytest.mark.parametrize("command", ["show", "tail"])
def test_a_partition_that_is_not_there_is_refused(engram: Engram, path: Path, command: str):
    """The sentence has those that are."""
    said = sentence(engram("log", command, SOCIAL, "--log", f"sqlite:{path}", "--partition", 2), 2)

    assert said == "There is no partition 2: the log has 0 to 1."


@pytest.mark.parametrize("command", ["show", "tail"])
@pytest.mark.parametrize("url", ["log.db", "sqlite:", "postgres://x/y"])
def test_a_bad_log_url_is_refused(engram: Engram, command: str, url: str):
    """The sentence shows how a log is named."""
    assert sentence(engram("log", command, SOCIAL, "--log", url), 2).startswith(f"{url!r} is not a log: write sqlite:")


@pytest.mark.parametrize("command", ["show", "tail"])
def test_a_log_that_is_not_there_is_not_made(engram: Engram, tmp_path: Path, command: str):
    """To look at a log makes none."""
    said = sentence(engram("log", command, SOCIAL, "--log", "sqlite:nowhere.db"), 2)

    assert "There is no log at" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["show", "tail"])
def test_an_unknown_app_is_refused(engram: Engram, path: Path, command: str):
    """As by every command that takes an app; also one of another log."""
    unknown = sentence(engram("log", command, "no_such_module:app", "--log", f"sqlite:{path}"), 2)
    other = sentence(engram("log", command, "tests.serving.counter:app", "--log", f"sqlite:{path}"), 2)

    assert unknown.startswith("There is no module 'no_such_module'")
    assert "belongs to app 'social', not to 'counters'" in other


# tail

Tail = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def tail(path: Path) -> Iterator[Tail]:
    """Starts `engram log tail` as a process of its own; it is ended with the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*options: str, log: str = f"sqlite:{path}") -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "engram.cli.main", "log", "tail", SOCIAL, "--log", log, *options]
        started.append(
            subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1)
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def told(process: subprocess.Popen[str], count: int) -> list[dict[str, Any]]:
    assert process.stdout is not None
    return [json.loads(process.stdout.readline()) for _ in range(count)]


def test_tail_shows_what_is_new_until_ctrl_c(tail: Tail, path: Path):
    """Nothing that was there before, every record once it is appended, and exit code 0 with nothing left behind."""
    process = tail()
    assert process.stderr is not None
    ready = process.stderr.readline()
    with closing(SqliteLog(path, "social")) as log:
        log.append([commands(1, NOON, register("fay"))])
        assert process.stdout is not None
        first = [process.stdout.readline() for _ in range(2)]
        log.append([Entry(0, Kind.COMMANDS, NOON, b"garbage"), commands(0, NOON + 1, register("gus"))])
        second = [process.stdout.readline() for _ in range(5)]
    process.send_signal(signal.SIGINT)
    rest, problems = process.communicate(timeout=30)

    assert ready == "social: what is new in 2 partitions (Ctrl-C stops)\n"
    assert first == [
        "1:3        commands 2023-11-14T22:13:20.000Z  by gateway-7\n",
        '    .0    register v1  fay  {"name":"Ada"}\n',
    ]
    assert [line[:12] for line in second] == [
        "0:5        c",
        "    PROBLEM ",
        "    garbage\n",
        "0:6        c",
        "    .0    re",
    ]
    assert (process.returncode, rest, problems) == (0, "", "")
    assert not path.with_name("log.db-wake").exists()


def test_tail_from_the_start_goes_on_with_what_is_new(tail: Tail, path: Path):
    """First all that is there, as JSON and in the order of time, then the rest; SIGTERM ends it as well."""
    process = tail("--from-start", "--json")
    before = positions(told(process, 8))
    with closing(SqliteLog(path, "social")) as log:
        log.append([commands(1, NOON, register("fay"))] * 300)
        after = positions(told(process, 300))
    process.send_signal(signal.SIGTERM)
    rest, problems = process.communicate(timeout=30)

    assert before == ["1:0", "0:0", "0:1", "0:2", "0:3", "1:1", "1:2", "0:4"]
    assert after == [f"1:{offset}" for offset in range(3, 303)]
    assert (process.returncode, rest, problems) == (0, "", "")


def test_tail_shows_one_partition_if_told(tail: Tail, path: Path):
    """Records of others are not shown, before or after."""
    process = tail("--from-start", "--json", "--partition", "1")
    before = positions(told(process, 3))
    with closing(SqliteLog(path, "social")) as log:
        log.append([commands(partition, NOON, register("fay")) for partition in (0, 1, 0)])
        after = positions(told(process, 1))
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=30)

    assert before == ["1:0", "1:1", "1:2"]
    assert (after, rest) == (["1:3"], "")


# copy


@pytest.fixture
def sound(tmp_path: Path) -> str:
    """A log of two partitions whose records can all be decoded, with an event."""
    event = OutEvent(0, 1, 1, 0, "published", 1, NOON, "bob", b'{"author":"bob","post":"p"}')
    with closing(SqliteLog(tmp_path / "sound.db", "social", partitions=2, create=True)) as log:
        log.append([entry for entry in STORY if entry.payload != b"garb\xffage"], [event])
    return f"sqlite:{tmp_path / 'sound.db'}"


def test_copy_shows_that_both_logs_are_equal(engram: Engram, sound: str):
    """A line for each partition with its records, events and digest; a replay of the copy has the same digests."""
    result = engram("log", "copy", SOCIAL, sound, "sqlite:copy.db")
    digests = [
        [row["digest"] for row in json.loads(engram("replay", SOCIAL, "--log", url, "--json").stdout)["partitions"]]
        for url in (sound, "sqlite:copy.db")
    ]

    assert (result.exit_code, result.stderr) == (0, "")
    assert "social: 7 records, 0.0 MB, copied in" in result.stdout
    assert digests[0] == digests[1]
    for partition, (records, events) in enumerate([(4, 1), (3, 0)]):
        cells = [str(partition), str(records), str(events), digests[0][partition][:16], "yes"]
        assert cells in [[cell.strip() for cell in line.split("│")[1:-1]] for line in result.stdout.splitlines()]


def test_copy_to_kafka_and_back_gives_the_first_log(engram: Engram, sound: str, kafka: Brokers):
    """Either way the digests are compared; and what comes back is shown like what went, line by line."""
    url = kafka.url(f"cli-{uuid4().hex[:8]}")
    there, back = (
        json.loads(engram("log", "copy", SOCIAL, *way, "--json").stdout)
        for way in ((sound, url), (url, "sqlite:back.db"))
    )
    shown = [engram("log", "show", SOCIAL, "--log", log, "--json").stdout for log in (sound, url, "sqlite:back.db")]

    assert (there["app"], there["equal"], there["left"]) == ("social", True, 0)
    assert there["partitions"] == back["partitions"]
    assert [len(row["digest"]) for row in there["partitions"]] == [64, 64]
    assert shown[0] == shown[1] == shown[2]
    assert len(shown[0].splitlines()) == 7


def test_tail_follows_kafka_too(tail: Tail, sound: str, engram: Engram, kafka: Brokers):
    """What was there and what is appended by another process, until Ctrl-C."""
    url = kafka.url(f"tail-{uuid4().hex[:8]}")
    assert engram("log", "copy", SOCIAL, sound, url).exit_code == 0
    process = tail("--json", "--from-start", log=url)
    before = positions(told(process, 7))
    with closing(open_log(url, "social")) as log:
        log.append([commands(1, NOON, register("fay"))])
        after = positions(told(process, 1))
    process.send_signal(signal.SIGINT)
    rest, problems = process.communicate(timeout=30)

    assert sorted(before) == ["0:0", "0:1", "0:2", "0:3", "1:0", "1:1", "1:2"]
    assert (after, process.returncode, rest, problems) == (["1:3"], 0, "", "")


def test_what_is_left_out_is_told(engram: Engram, sound: str):
    """A log that is written to is copied as it was at the start, and how much came later is said."""
    done = threading.Event()

    def write() -> None:
        with closing(open_log(sound, "social")) as log:
            while not done.is_set():
                log.append([commands(1, NOON, register("fay"))])

    writer = threading.Thread(target=write)
    writer.start()
    for attempt in range(20):  # with a first record that comes too late, the next copy has it
        result = engram("log", "copy", SOCIAL, sound, f"sqlite:copy-{attempt}/log.db")
        if result.exit_code or "meanwhile" in result.stdout:
            break
    done.set()
    writer.join()

    assert result.exit_code == 0, result.output
    assert re.search(
        r"^The log was written to meanwhile: [\d,]+ newer records are not in the copy\.$", result.stdout, re.MULTILINE
    )


def test_a_copy_onto_records_is_refused(engram: Engram, sound: str):
    """A second copy to the same place says what to do, and leaves the first as it is."""
    engram("log", "copy", SOCIAL, sound, "sqlite:copy.db")
    said = sentence(engram("log", "copy", SOCIAL, sound, "sqlite:copy.db"), 2)

    assert said.startswith("The log to copy to is not empty: it has 7 records. Copy to a new one")
    assert engram("replay", SOCIAL, "--log", "sqlite:copy.db").exit_code == 0


def test_a_copy_of_nothing_makes_nothing(engram: Engram, tmp_path: Path):
    """A wrong path to copy from does not leave a new log behind."""
    said = sentence(engram("log", "copy", SOCIAL, "sqlite:nowhere.db", "sqlite:copy.db"), 2)

    assert "There is no log at" in said
    assert list(tmp_path.iterdir()) == []


def test_a_log_that_cannot_be_replayed_is_not_called_equal(engram: Engram, path: Path):
    """The record that cannot be decoded is named, and the exit code is 2: nobody knows what the copy comes to."""
    said = sentence(engram("log", "copy", SOCIAL, f"sqlite:{path}", "sqlite:copy.db"), 2)

    assert said.startswith("All was copied, but it cannot be compared: Record 2 of partition 0 cannot be decoded")


DICE = """
from dataclasses import dataclass
from itertools import count
from engram import App, Command, Entity

ROLLS = count()

@dataclass(slots=True, kw_only=True)
class Die(Entity, name="die"):
    eyes: int = 0

class Roll(Command[Die, None], name="roll"):
    def handle(self, die, ctx):
        die.eyes = next(ROLLS)

app = App("dice", commands=[Roll])
"""


def test_digests_that_differ_are_told(engram: Engram, tmp_path: Path):
    """An app whose handlers come to something else each time: the table has a NO, the exit code is 2."""
    (tmp_path / "loaded_dice.py").write_text(DICE)
    with closing(SqliteLog(tmp_path / "dice.db", "dice", partitions=2, create=True)) as log:
        log.append([Entry(1, Kind.COMMANDS, NOON, encode_commands([Envelope("roll", 1, "d", b"{}", "s", 0)], "w"))])
    result = engram("log", "copy", "loaded_dice:app", "sqlite:dice.db", "sqlite:copy.db")

    assert result.exit_code == 2
    assert [line.rstrip("│ ").rpartition(" ")[2] for line in result.stdout.splitlines() if line.startswith("│")] == [
        "yes",
        "NO",
    ]
    assert result.stderr.startswith(
        "engram: The copy at sqlite:copy.db is not the same in partitions 1: do not use it."
    )
