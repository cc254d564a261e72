"""`engram snapshot list` and `verify`: what there is, and whether it can be used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from engram.snapshots.files import FileSnapshots

from tests.cli.saying import Engram, sentence
from tests.snapshots.contents import social_contents

SOCIAL = "sample_apps.social:app"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two snapshots of partition 0, and one of partition 3, beside a log `social.db`."""
    store = FileSnapshots(tmp_path / "social.db-snapshots", "social")
    for offset in (2, 5):
        store.publish(0, social_contents(offset)._replace(pause_ms=lambda: 2.5), created=1_700_000_000_000)
    store.publish(3, social_contents(4)._replace(pause_ms=lambda: 2.5), created=1_700_000_000_000)
    return tmp_path / "social.db-snapshots"


def test_snapshots_are_listed_newest_first(engram: Engram, folder: Path):
    """With their records, entities, bytes and costs, and how old they are; found beside the log or by their folder."""
    beside = engram("snapshot", "list", SOCIAL, "--log", f"sqlite:{folder.with_name('social.db')}", "--json")
    by_folder = engram("snapshot", "list", SOCIAL, "--snapshots", folder, "--json")
    table = engram("snapshot", "list", SOCIAL, "--snapshots", folder)

    assert beside.stdout == by_folder.stdout
    listed = json.loads(beside.stdout)
    assert [(row["partition"], row["offset"], row["entities"], row["changed"]) for row in listed] == [
        (0, 5, 5, 5),
        (0, 2, 2, 2),
        (3, 4, 4, 4),
    ]
    assert all(row["bytes"] > 0 and row["time"] == "2023-11-14T22:13:20.000Z" for row in listed)
    assert all((row["pause_ms"], row["background_ms"]) == (2.5, 0.0) for row in listed)
    for column in ("age", "changed", "pause_ms", "background_ms"):
        assert column in table.stdout
    assert table.stdout.count(" d ") == 3


def test_good_snapshots_are_verified_with_their_digests(engram: Engram, folder: Path):
    """Every entity is decoded, and the digest is that of what was published."""
    said = engram("snapshot", "verify", SOCIAL, "--snapshots", folder, "--json")

    assert said.exit_code == 0
    assert [row["problem"] for row in json.loads(said.stdout)] == ["", "", ""]
    assert {row["digest"] for row in json.loads(said.stdout)} == {
        manifest.digest for p in (0, 3) for manifest in FileSnapshots(folder, "social").manifests(p)
    }


def test_a_damaged_snapshot_is_told_and_left_where_it_is(engram: Engram, folder: Path):
    """Exit code 2, a line for each, and nothing is set aside: that is for a start to do."""
    part = next((folder / "social" / "partition-0000").glob("*5-*/entities.parquet"))
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    before = sorted(folder.rglob("*"))

    said = engram("snapshot", "verify", SOCIAL, "--snapshots", folder)

    assert said.exit_code == 2
    assert "1 of 3 snapshots cannot be used" in said.stderr
    assert "checksum" in said.stdout
    assert sorted(folder.rglob("*")) == before


def test_no_place_and_two_places_are_refused(engram: Engram, folder: Path):
    """The sentence says what to give."""
    assert "--log URL" in sentence(engram("snapshot", "list", SOCIAL), 2)
    both = engram("snapshot", "verify", SOCIAL, "--log", "sqlite:x.db", "--snapshots", folder)
    assert "--snapshots URL" in sentence(both, 2)
    assert "There are no snapshots of social" in sentence(engram("snapshot", "list", SOCIAL, "--log", "sqlite:x.db"), 2)
