"""`engram backfill` and `engram shadow`: what they refuse before Spark is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from engram.log.sqlite import SqliteLog

from tests.cli.saying import Engram, sentence


@pytest.fixture
def log(tmp_path: Path) -> str:
    SqliteLog(tmp_path / "log.db", "social", partitions=3, create=True).close()
    return f"sqlite:{tmp_path / 'log.db'}"


def test_a_source_that_is_not_there_is_refused(engram: Engram, tmp_path: Path):
    """And no log is made for it."""
    new = tmp_path / "new.db"
    told = engram("backfill", "sample_apps.social:app", "--log", f"sqlite:{new}", "--from", "no.csv", "--partitions", 2)

    assert sentence(told, 2) == "There is nothing at no.csv: --from takes a file, a folder, or table:NAME."
    assert not new.exists()


def test_a_log_is_made_only_when_that_is_asked_for(engram: Engram, tmp_path: Path):
    """Its number of partitions is for ever: somebody has to say it."""
    (tmp_path / "a.csv").write_text("id,command,key\n")
    told = engram("backfill", "sample_apps.social:app", "--log", "sqlite:new.db", "--from", "a.csv")

    assert "There is no log at" in sentence(told, 2)


def test_a_log_of_another_number_of_partitions_is_refused(engram: Engram, log: str, tmp_path: Path):
    """Plans are made for the partitions that are there."""
    (tmp_path / "a.csv").write_text("id,command,key\n")
    told = engram("backfill", "sample_apps.social:app", "--log", log, "--from", "a.csv", "--partitions", "4")

    assert "has 3 partitions, not 4" in sentence(told, 2)


def test_versions_of_different_apps_are_not_compared(engram: Engram, log: str):
    """A shadow is of one app; and a log of another app is none for it."""
    other = engram("shadow", "sample_apps.social:app", "sample_apps.impressions:app", "--log", log)
    strange = engram("shadow", "sample_apps.impressions:app", "sample_apps.impressions:app", "--log", log)

    assert sentence(other, 2).endswith("is impressions: compare versions of one app.")
    assert "belongs to app 'social'" in sentence(strange, 2)
