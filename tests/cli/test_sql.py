"""`engram sql`, `export` and `rebuild`: what is refused before any Spark is started. The rest is in tests/spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from engram.cli.sql import statements

from tests.cli.saying import Engram, Java, sentence
from tests.spark.story import SOCIAL, Story


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    made = Story(tmp_path, f"sqlite:{tmp_path / 'log.db'}")
    yield made
    made.close()


def test_what_is_wrong_is_told_before_spark_starts(engram: Engram, java: Java, story: Story, tmp_path: Path):
    """Another app's log, no log, a file that is there, a file of no kind, a table that is not there, Parquet on a
    screen: exit code 2, and a Java that could not run Spark is not even tried."""
    java("17.0.1")
    there = tmp_path / "there.csv"
    there.touch()
    log = ("--log", story.url)

    def refused(*arguments: object) -> str:
        return sentence(engram(*arguments), 2)

    assert "belongs to app 'social', not to 'mortal'" in refused("sql", "tests.spark.mortal:app", "select 1", *log)
    assert "There is no log at" in refused("sql", SOCIAL, "select 1", "--log", "sqlite:none.db")
    assert "there.csv is there already" in refused("sql", SOCIAL, "select 1", *log, "--output", there)
    assert "Parquet is nothing for a screen" in refused("sql", SOCIAL, "select 1", *log, "--format", "parquet")
    assert "--output takes what one statement gives" in refused("sql", SOCIAL, *log, "--output", tmp_path / "x.csv")
    assert "x.xls says no kind of file" in refused("export", SOCIAL, "user", *log, "--to", tmp_path / "x.xls")
    assert "There is no folder" in refused("export", SOCIAL, "user", *log, "--to", tmp_path / "no" / "x.csv")
    assert "There is no table usr: there are events, " in refused("export", SOCIAL, "usr", *log, "--to", "x.csv")
    assert "belongs to app 'social'" in refused("rebuild", "tests.spark.mortal:app", *log)
    assert there.read_text() == ""


def test_statements_are_told_apart():
    """By semicolons, but not those in texts, names and comments."""
    text = 'select \';\' as a; select `;` -- one; two\nfrom x;\n;select "a\\";b"'

    assert statements(text) == ["select ';' as a", "select `;` -- one; two\nfrom x", 'select "a\\";b"']
