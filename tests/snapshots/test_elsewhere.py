"""Others read snapshots without the app's classes: the lines in `docs/how-to/read-snapshots-elsewhere.md` work."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from engram.image.contents import EntityRow, columns_of
from engram.snapshots.base import Contents
from engram.snapshots.files import FileSnapshots
from engram.snapshots.manifest import Manifest
from engram.spark.spark import Spark

from tests.snapshots.contents import social_contents
from tests.spark.quick import QUICK

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "read-snapshots-elsewhere.md"
DUCKDB, SPARK, EXACT = re.findall(r"^```py\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def older(tmp_path: Path) -> Manifest:
    """Two partitions with users, some of whom have another name since: a base, and two that go on from it. This is the
    older of these."""
    store = FileSnapshots(tmp_path, "social")
    other = [row._replace(key="zoe") for row in social_contents(1).entities]
    store.publish(4, _renamed(social_contents(1)._replace(columns=columns_of(other)), {"zoe": "Zoe"}), created=1)
    base = store.publish(0, social_contents(300), created=1)
    users = columns_of([row for row in social_contents(300).entities if row.key in ("user-1", "user-2")])
    between = Contents(users, social_contents(301).memory, 300, base)
    saved = store.publish(0, _renamed(between, {"user-1": "Ada", "user-2": "Bob"}), created=1)
    later = Contents(users[:1], social_contents(302).memory, 300, saved)
    store.publish(0, _renamed(later, {"user-1": "Bea", "user-2": "Bob"}), created=1)
    return saved


def _renamed(contents: Contents, names: dict[str, str]) -> Contents:
    rows = [
        EntityRow(
            row.entity, row.key, row.version, json.dumps(json.loads(row.state) | {"name": names[row.key]}).encode()
        )
        for row in contents.entities
    ]
    return contents._replace(columns=columns_of(rows))


def _run(lines: str, **given: Any) -> list[tuple[str, str]]:
    exec(compile(lines, PAGE.name, "exec"), given)
    return [tuple(row) for row in given["found"]]


def _expected(changed: dict[str, str]) -> list[tuple[str, str]]:
    return sorted(({f"user-{number}": "Somebody" for number in range(300)} | changed).items())


def test_duckdb_reads_the_newest_state_of_all_partitions(older: Manifest, tmp_path: Path):
    """Of an entity that is in several parts, the last counts."""
    found = _run(DUCKDB, folder=tmp_path)

    assert found == [*_expected({"user-1": "Bea", "user-2": "Bob"}), ("zoe", "Zoe")]


def test_duckdb_reads_one_snapshot_exactly(older: Manifest, tmp_path: Path):
    """By its manifest: nothing of what came later."""
    found = _run(EXACT, manifest=tmp_path / "social" / "partition-0000" / f"{older.name}.json")

    assert len(older.entity_parts) == 2
    assert found == _expected({"user-1": "Ada", "user-2": "Bob"})


@pytest.mark.spark
def test_spark_reads_the_newest_state_of_all_partitions(older: Manifest, tmp_path: Path):
    """As DuckDB does, on a real Spark."""
    from pyspark.sql import SparkSession

    with Spark(name="reader", master="local[1]", slots=1, log_file=tmp_path / "spark.log", settings=QUICK) as spark:
        found = _run(SPARK, folder=tmp_path, spark=SparkSession(spark.context))

    assert sorted(found) == sorted(_run(DUCKDB, folder=tmp_path))
