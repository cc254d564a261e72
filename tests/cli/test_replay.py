"""`engram replay`: a log from zero, without Spark, with the digest of every partition."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from engram.codec.record import Envelope, Kind, encode_commands
from engram.log.base import Entry
from engram.log.partitioner import partition_of
from engram.log.sqlite import SqliteLog

from tests.cli.saying import Engram, sentence
from tests.serving.running import RunningApp


@pytest.fixture
def log(tmp_path: Path) -> str:
    """A log of twenty registrations over three partitions, one of a user who is there already."""
    made = SqliteLog(tmp_path / "log.db", "social", partitions=3, create=True)
    for number in range(20):
        key = f"user{number % 19}"
        envelope = Envelope("register", 1, key, b'{"name":"Somebody"}', f"s{number}", 0)
        made.append([Entry(partition_of(key, 3), Kind.COMMANDS, 1000 + number, encode_commands([envelope], "w"))])
    made.close()
    return f"sqlite:{tmp_path / 'log.db'}"


def test_the_table_has_a_line_for_each_partition(engram: Engram, log: str):
    """Records, commands, entities and the beginning of the digest, and how many commands in all."""
    result = engram("replay", "sample_apps.social:app", "--log", log)
    counts = json.loads(engram("replay", "sample_apps.social:app", "--log", log, "--json").stdout)["partitions"]

    assert (result.exit_code, result.stderr) == (0, "")
    assert "social: 20 commands replayed in" in result.stdout
    for word in ("partition", "records", "commands", "entities", "quarantined", "digest"):
        assert word in result.stdout
    for row in counts:
        assert row["digest"][:16] in result.stdout


def test_json_has_the_whole_digests_and_numbers(engram: Engram, log: str):
    """`--json` is one object with a row for each partition; a second replay gives the same rows."""
    first, second = (
        json.loads(engram("replay", "sample_apps.social:app", "--log", log, "--json").stdout) for _ in range(2)
    )

    assert first["app"] == "social"
    assert first["partitions"] == second["partitions"]
    assert [row["partition"] for row in first["partitions"]] == [0, 1, 2]
    assert [sum(row[name] for row in first["partitions"]) for name in ("records", "commands", "entities")] == [
        20,
        20,
        19,
    ]
    assert all(len(row["digest"]) == 64 for row in first["partitions"])


def test_the_digests_are_those_of_the_running_app(engram: Engram, social: RunningApp):
    """A replay beside the running app gives the digests that its shards report."""
    for number in range(5):
        engram("send", "register", f"replayed{number}", '{"name": "R"}', "--url", social.url)
    status = social.http.get("/api/social", params={"digests": "true"}).json()
    live = {p["partition"]: p["digest"] for shard in status["shards"] for p in shard["partitions"]}
    result = engram("replay", "sample_apps.social:app", "--log", f"sqlite:{social.folder / 'log.db'}", "--json")

    assert {row["partition"]: row["digest"] for row in json.loads(result.stdout)["partitions"]} == live


def test_a_record_that_cannot_be_decoded_is_named(engram: Engram, log: str):
    """A replay ends at a bad record with its position, in one sentence."""
    path = Path(log.removeprefix("sqlite:"))
    spoilt = SqliteLog(path, "social")
    offset = spoilt.append([Entry(1, Kind.COMMANDS, 5000, b"garbage")])[0]
    spoilt.close()

    said = sentence(engram("replay", "sample_apps.social:app", "--log", log), 2)
    assert f"Record {offset} of partition 1 cannot be decoded" in said


def test_a_log_that_is_not_there_is_not_made(engram: Engram, tmp_path: Path):
    """A replay makes no log: a wrong path is a mistake."""
    said = sentence(engram("replay", "sample_apps.social:app", "--log", "sqlite:nowhere.db"), 2)

    assert "There is no log at" in said
    assert not (tmp_path / "nowhere.db").exists()


def test_a_log_of_another_app_is_refused(engram: Engram, log: str):
    """A replay with the wrong app would only find records that it cannot decode."""
    said = sentence(engram("replay", "tests.serving.counter:app", "--log", log), 2)

    assert "belongs to app 'social', not to 'counters'" in said
