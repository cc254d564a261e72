"""`engram backfill` and `engram shadow`: what they refuse before Spark is started."""

from __future__ import annotations

import resource
import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from engram.cli.shadow import check_report, write_report
from engram.errors import Unavailable
from engram.log.open import open_log
from engram.log.sqlite import SqliteLog
from engram.shard.shadow import Difference
from engram.spark.files import copy_file
from pyarrow import parquet

from tests.cli.saying import Engram, sentence


@contextmanager
def small_files() -> Iterator[None]:
    """No file may become longer than 50 kB: as on a full disk, writing fails on the way."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


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


def test_a_file_of_bad_rows_is_never_written_over(engram: Engram, log: str, tmp_path: Path):
    """It may be what somebody has mended since. No log is made, and nothing is added to one."""
    (tmp_path / "a.csv").write_text("id,command,key,name\n1,register,ada,Ada\n")
    there = tmp_path / "bad.jsonl"
    there.write_text("mended")
    line = ("backfill", "sample_apps.social:app", "--from", "a.csv", "--bad", there, "--log")
    of_log, of_none = engram(*line, log), engram(*line, "sqlite:new.db", "--partitions", 2)

    for told in (of_log, of_none):
        assert sentence(told, 2) == f"{there} is there already: choose another name, or remove it first."
    assert there.read_text() == "mended"
    assert not (tmp_path / "new.db").exists()
    with closing(open_log(log, "social")) as opened:
        assert [opened.end(partition) for partition in range(3)] == [0, 0, 0]


def test_a_file_is_copied_whole_or_not_at_all(tmp_path: Path):
    """A full disk leaves nothing that the next run is refused for."""
    bad, given = tmp_path / "bad.jsonl", tmp_path / "given.jsonl"
    bad.write_text("{}\n" * 100_000)

    with small_files(), pytest.raises(Unavailable, match=r"given\.jsonl could not be written"):
        copy_file(bad, given)
    assert list(tmp_path.iterdir()) == [bad]
    copy_file(bad, given)
    assert given.read_text() == bad.read_text()


def test_a_shadows_report_goes_where_nothing_is(engram: Engram, log: str, tmp_path: Path):
    """Not into a file, not below one, and not among others' files; an empty folder will do."""
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "empty").mkdir()
    shadow = ("shadow", "sample_apps.social:app", "sample_apps.social:app", "--log", log, "--report")

    for taken in ("file", "full"):
        told = engram(*shadow, taken)
        assert sentence(told, 2) == f"{taken} is there already: choose another folder for the report."
    assert sentence(engram(*shadow, "file/below"), 2).endswith("file is no folder: choose another one for the report.")
    check_report(tmp_path / "empty")


def test_a_report_is_there_whole_or_not_at_all(tmp_path: Path):
    """A full disk, or a kill between its two files, leaves nothing that the next run is refused for."""
    rows = [{"kind": "reply", "name": "pay", "compared": 2, "different": 1}]
    example = Difference("reply", "pay", "0:1.0", "ada", "1", secrets.token_hex(100_000))
    report = tmp_path / "deep" / "report"

    with small_files(), pytest.raises(Unavailable, match="report could not be written"):
        write_report(report, rows, [example])
    assert list(report.parent.iterdir()) == []
    (report.parent / ".report.0badcafe").mkdir()  # what a run leaves that is killed here
    write_report(report, rows, [example])
    assert parquet.read_table(report / "compared.parquet").to_pylist() == rows
    assert parquet.read_table(report / "differences.parquet").num_rows == 1


def test_versions_of_different_apps_are_not_compared(engram: Engram, log: str):
    """A shadow is of one app; and a log of another app is none for it."""
    other = engram("shadow", "sample_apps.social:app", "sample_apps.impressions:app", "--log", log)
    strange = engram("shadow", "sample_apps.impressions:app", "sample_apps.impressions:app", "--log", log)

    assert sentence(other, 2).endswith("is impressions: compare versions of one app.")
    assert "belongs to app 'social'" in sentence(strange, 2)
