"""What is decoded of a log for a query with filters, and what is not: without any Spark."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from engram.codec.record import Envelope, Kind, Record, encode_commands
from engram.errors import Misuse
from engram.log.base import Entry
from engram.log.sqlite import SqliteLog
from engram.spark.frames.batches import arrow_schema, batched, schema_of
from engram.spark.frames.filters import Bounds
from engram.spark.frames.log import SCHEMA, RowsOfRecords, read_span
from engram.spark.frames.options import Where, number_of
from engram.spark.frames.source import Span
from hypothesis import given
from hypothesis import strategies as st

ENTITIES = {"follow": "user", "publish": "user", "like": "post"}
NAMES, KEYS = [*ENTITIES, "unheard_of"], ["ada", "bob"]

Texts = Mapping[str, frozenset[str]]


def payload(*commands: tuple[str, str], damaged: bool = False) -> bytes:
    """A batch of commands by names and keys. Whoever decodes the bodies of a damaged one makes a row with a problem."""
    whole = encode_commands([Envelope(name, 1, key, b'{"n":1}', "s", n) for n, (name, key) in enumerate(commands)], "w")
    return whole.replace(b'"n":1}', b'"n":1') if damaged else whole


def record(offset: int, *commands: tuple[str, str], damaged: bool = False) -> Record:
    return Record(0, offset, Kind.COMMANDS, 1000 + offset, payload(*commands, damaged=damaged))


DAMAGED = [
    record(0, ("follow", "ada"), damaged=True),
    record(1, ("publish", "bob"), ("like", "ada"), damaged=True),
    record(2, ("like", "bob"), damaged=True),
    record(3, ("unheard_of", "ada"), damaged=True),
]


@pytest.mark.parametrize(
    ("texts", "decoded"),
    [
        ({}, [0, 1, 2, 3]),
        ({"name": {"follow"}}, [0]),
        ({"entity": {"user"}}, [0, 1]),
        ({"entity": {"post"}}, [1, 2]),
        ({"entity": {"nothing"}}, []),
        ({"entity": {"user"}, "name": {"like", "publish"}}, [1]),
        ({"key": {"ada"}}, [0, 1, 3]),
        ({"key": {"ada"}, "entity": {"user"}}, [0, 1]),
        ({"kind": {"epoch"}}, []),
    ],
)
def test_only_records_that_may_have_a_row_are_decoded(texts: dict[str, set[str]], decoded: list[int]):
    """By the names, entity types and keys in their headers, and their kind."""
    rows = RowsOfRecords(ENTITIES, texts)
    made = {each.offset: rows.columns(each) for each in DAMAGED}

    assert [offset for offset, columns in made.items() if columns[0]] == decoded
    assert all("bodies" in columns[-1][0] or "Expecting" in columns[-1][0] for columns in made.values() if columns[0])


@pytest.fixture
def where(tmp_path: Path) -> Where:
    """A log of four damaged records, at times 1000 to 1003."""
    with closing(SqliteLog(tmp_path / "log.db", "social", partitions=1, create=True)) as log:
        log.append([Entry(0, each.kind, each.time, each.payload) for each in DAMAGED])
    return Where("social", f"sqlite:{tmp_path / 'log.db'}")


def test_records_of_other_times_are_read_but_not_decoded(where: Where):
    """And those outside the offsets not even read."""

    def decoded(bounds: Bounds, start: int = 0, end: int = 4) -> list[int]:
        return [
            offset for batch in read_span(where, Span(0, start, end), bounds) for offset in batch["offset"].to_pylist()
        ]

    assert decoded(Bounds()) == [0, 1, 2, 3]
    assert decoded(Bounds(low={"time": 1002})) == [2, 3]
    assert decoded(Bounds(low={"time": 1001}, high={"time": 1002})) == [1, 2]
    assert decoded(Bounds(), 1, 3) == [1, 2]
    assert decoded(Bounds(low={"time": 1002}), 0, 3) == [2]


some_texts = st.fixed_dictionaries(
    {},
    optional={
        "name": st.frozensets(st.sampled_from(NAMES)),
        "entity": st.frozensets(st.sampled_from(["user", "post"])),
        "key": st.frozensets(st.sampled_from(KEYS)),
        "kind": st.frozensets(st.sampled_from(["commands", "epoch"])),
    },
)
some_commands = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(KEYS)), min_size=1, max_size=4)


@given(st.lists(some_commands, min_size=1, max_size=4), some_texts)
def test_what_is_not_decoded_changes_no_answer(batches: list[list[tuple[str, str]]], texts: Texts):
    """Whatever is in the log and whatever is asked: the rows are those of decoding everything."""
    records = [record(offset, *commands) for offset, commands in enumerate(batches)]
    records.append(Record(0, len(batches), Kind.EPOCH, 1, b"{}"))
    schema = arrow_schema(schema_of(SCHEMA))

    def answer(rows: RowsOfRecords) -> list[dict[str, Any]]:
        bounds = Bounds(texts=dict(texts))
        found = batched(map(rows.columns, records), schema)
        return [row for batch in found for row in bounds.kept(batch, texts).to_pylist()]

    assert answer(RowsOfRecords(ENTITIES, texts)) == answer(RowsOfRecords(ENTITIES))


@pytest.mark.parametrize("wrong", ["", "0", "-1", "many", "1.5"])
def test_an_option_that_is_no_number_is_refused(wrong: str):
    """In one sentence, when the query is planned."""
    with pytest.raises(Misuse, match=f"The option recordsPerTask of engram.log is a number from 1 on, not '{wrong}'"):
        number_of({"recordsPerTask": wrong}, "recordsPerTask", "engram.log", 7)
    assert number_of({}, "recordsPerTask", "engram.log", 7) == 7
