"""The reference of the DataFrames says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from engram.spark.frames import events, log, replies, state
from engram.spark.frames.batches import schema_of
from engram.spark.frames.options import WHERE
from engram.spark.frames.register import FORMATS

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "dataframes.md").read_text()
COLUMN = re.compile(r"^\| `(\w+)` \| ([A-Z]+) \|", re.MULTILINE)


@pytest.mark.parametrize(
    ("form", "schema"),
    [
        ("engram.log", log.SCHEMA),
        ("engram.events", events.SCHEMA),
        ("engram.replies", replies.SCHEMA),
        ("engram.state", state.SCHEMA),
    ],
)
def test_the_columns_of_a_format_are_those_of_its_page(form: str, schema: str):
    """Names, types and their order."""
    section = PAGE.partition(f"## {form}\n")[2].partition("\n## ")[0]

    assert ", ".join(f"{name} {of}" for name, of in COLUMN.findall(section)) == schema
    assert len(schema_of(schema)) == len(schema.split(", "))


def test_every_option_and_format_is_described():
    """In the table of options, or as a heading."""
    options = {option for source in FORMATS for option in (*WHERE, *source.more)}

    assert [option for option in sorted(options) if f"| `{option}` |" not in PAGE] == []
    assert [source.form for source in FORMATS if f"\n## {source.form}\n" not in PAGE] == []
