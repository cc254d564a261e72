"""`engram sql` and `engram export`: tables on a real Spark, files, and what is refused in one sentence."""

from __future__ import annotations

import csv
import json
import re
import secrets
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from engram.dev.kafka import Brokers
from engram.errors import Misuse
from engram.log.open import absolute_url
from engram.log.scan import scan
from engram.spark.files import Sheet, write_file
from engram.spark.plain import distinct, json_lines, plain
from engram.spark.problems import told_shortly
from engram.spark.spark import Spark
from engram.spark.tables import Tables, tables_of

from tests.spark.quick import QUICK, QUICK_OPTIONS
from tests.spark.running import ROOT, START_S
from tests.spark.story import PEOPLE, SOCIAL, Story
from tests.spark.terminal import Terminal

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("sql")
    made = Story(folder, f"sqlite:{folder / 'log.db'}")
    made.live(savepoint="noon")
    yield made
    made.close()


@pytest.fixture(params=["sqlite", "kafka"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Story]:
    """The same on either log."""
    if request.param == "sqlite":
        yield request.getfixturevalue("story")
        return
    brokers: Brokers = request.getfixturevalue("kafka")
    with closing(Story(tmp_path, brokers.url(f"sql-{secrets.token_hex(4)}"))) as made:
        made.live(savepoint="noon")
        yield made


@pytest.fixture(scope="module")
def tables(story: Story, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tables]:
    log_file = tmp_path_factory.mktemp("spark") / "spark.log"
    with Spark(name="sql", master="local[2,1]", slots=1, log_file=log_file, settings=QUICK) as spark:
        found = tables_of(SOCIAL, log=absolute_url(story.url), snapshots=story.snapshots)
        yield Tables(spark.session, found)


def test_entities_read_models_and_the_rest_are_tables(tables: Tables):
    """A join over state, log and a read model; state itself is VARIANT."""
    (row,) = tables.ask(
        "select u.name, size(u.followers) as followers, m.score, count(*) as commands "
        "from user u join most_followed m on m.row = u.key join log l on l.key = u.key "
        "where u.key = 'user5' and l.kind = 'commands' group by all"
    ).collect()
    states = tables.ask("select state:name::string as name from state where entity = 'user' order by name").collect()

    assert (row.name, row.followers, row.score) == ("User5", 3, 3.0)
    assert row.commands == 6  # register, four follows, publish
    assert [state.name for state in states] == sorted(key.title() for key in PEOPLE)
    assert {t.tableName for t in tables.ask("show tables").collect()} >= {"user", "tag", "rules", "log", "replies"}


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("selec 1", "Spark cannot run the statement: Syntax error at or near 'selec' (line 1, column 1)."),
        ("select nobody from user", "Spark cannot run the statement: A column, variable, or function parameter with"),
        ("select * from usr", "Spark cannot run the statement: The table or view `usr` cannot be found"),
        ("select 1 / cast(name as int) from user", "Spark cannot run the statement: "),
    ],
)
def test_a_wrong_statement_is_one_sentence(tables: Tables, statement: str, said: str):
    """Without a page of Java, and nothing of it on stderr."""
    with pytest.raises(Misuse) as refused, told_shortly():
        tables.ask(statement).collect()

    assert str(refused.value).startswith(said)
    assert "\n" not in str(refused.value)


def test_files_have_what_the_tables_have(tables: Tables, tmp_path: Path):
    """Parquet with types, CSV and SQLite with plain values, lines of JSON; an empty one too."""
    users = tables.frame("user").orderBy("key")
    count = len(PEOPLE)

    assert write_file([Sheet("user", users)], tmp_path / "u.parquet", "parquet") == {"user": count}
    assert write_file([Sheet("user", users)], tmp_path / "u.csv", "csv") == {"user": count}
    assert write_file([Sheet("user", users)], tmp_path / "u.json", "json") == {"user": count}
    both = [Sheet("user", users, "key"), Sheet("events", tables.frame("events"), "id")]
    counts = write_file(both, tmp_path / "u.db", "sqlite")
    assert write_file([Sheet("none", users.where("false"))], tmp_path / "none.parquet", "parquet") == {"none": 0}

    kept = pq.read_table(tmp_path / "u.parquet")
    assert kept["key"].to_pylist() == sorted(PEOPLE)
    assert str(kept.schema.field("since").type) == "timestamp[us, tz=UTC]"
    assert pq.read_table(tmp_path / "none.parquet").schema.names == kept.schema.names
    with (tmp_path / "u.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["key"] for line in lines] == sorted(PEOPLE)
    assert lines[0]["since"].endswith("Z")
    assert json.loads(lines[0]["followers"]) == kept["followers"].to_pylist()[0]
    objects = [json.loads(line) for line in (tmp_path / "u.json").read_text().splitlines()]
    assert [one["key"] for one in objects] == sorted(PEOPLE)
    db = sqlite3.connect(tmp_path / "u.db")
    assert db.execute("select count(*) from user").fetchone() == (count,)
    assert db.execute("select count(*) from events").fetchone() == (counts["events"],)
    assert db.execute("select key from user where key = 'user3'").fetchone() == ("user3",)
    assert [row[1] for row in db.execute("pragma table_info(user)") if row[5]] == ["key"]
    db.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["none.parquet", "u.csv", "u.db", "u.json", "u.parquet"]


def test_a_file_that_cannot_be_whole_is_not_there(tables: Tables, tmp_path: Path):
    """A task fails while it is written: no file, and nothing left beside it; one that is there is not touched."""
    bad = tables.ask("select 1 / cast(name as int) from user")
    with pytest.raises(Misuse, match="Spark cannot run the statement"):
        write_file([Sheet("bad", bad)], tmp_path / "bad.csv", "csv")
    assert list(tmp_path.iterdir()) == []

    (tmp_path / "there.csv").write_text("mine")
    with pytest.raises(Misuse, match=r"there.csv is there already: choose another name, or remove it first\."):
        write_file([Sheet("user", tables.frame("user"))], tmp_path / "there.csv", "csv")
    assert (tmp_path / "there.csv").read_text() == "mine"


def test_plain_values_and_names_that_come_twice(tables: Tables):
    """What holds others is JSON text; a second column of a name gets a number."""
    frame = tables.ask(
        "select 1 as a, 2 as A, map('x', 1) as m, timestamp'2026-01-31 12:00:00' as t, "
        "cast('hi' as binary) as b, 1.50 as d, cast(null as int) as n"
    )
    (row,) = plain(frame).collect()
    (line,) = json_lines(frame).collect()

    assert row.asDict() == {
        "a": 1, "A_2": 2, "m": '{"x":1}', "t": "2026-01-31T12:00:00.000000Z", "b": "aGk=", "d": "1.50", "n": None
    }  # fmt: skip
    assert json.loads(line.row)["n"] is None
    assert distinct(["x", "X", "x_2", "x"]) == ["x", "X_2", "x_2_2", "x_3"]


def command(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "engram.cli.main", *arguments, *QUICK_OPTIONS]
    return subprocess.run(line, cwd=ROOT, input=stdin, capture_output=True, text=True, timeout=2 * START_S, check=False)


def test_the_statement_is_an_argument_and_the_moment_a_time(story: Story):
    """A minute before anybody followed anybody, all had been registered; CSV is printed as it is."""
    moment = datetime.fromtimestamp((story.network.clock.now - 90_000) / 1000, UTC).replace(tzinfo=None)
    said = command(
        *("sql", SOCIAL, 'select count(*) as users, sum(size(following)) as `"follows"` from user'),
        *("--log", story.url, "--snapshots", story.snapshots, "--at", moment.isoformat(), "--format", "csv"),
        *("--master", "local[1]"),
    )

    assert (said.returncode, said.stdout) == (0, f'users,"""follows"""\n{len(PEOPLE)},0\n'), said.stderr


def test_rows_go_to_a_file_and_the_moment_is_a_position(story: Story, tmp_path: Path):
    """The file's name says its kind; of the position's own partition there is nothing after it."""
    first = next(record for record in scan(story.log, 1) if b'"register"' in record.payload)
    target = tmp_path / "users.parquet"
    said = command(
        *("sql", SOCIAL, "select key, _partition, _offset, followers from user order by key", "--output", str(target)),
        *("--log", story.url, "--snapshots", story.snapshots, "--at", f"1:{first.offset}", "--master", "local[1]"),
    )

    assert said.returncode == 0, said.stderr
    assert said.stdout == f"{target} has {len(PEOPLE)} rows.\n"
    kept = pq.read_table(target).to_pylist()
    assert [row["key"] for row in kept] == sorted(PEOPLE)
    assert {row["_offset"] for row in kept if row["_partition"] == 1} == {first.offset + 1}
    assert {*chain.from_iterable(row["followers"] for row in kept)} == set()


def test_the_shell_answers_stops_and_goes_on(story: Story):
    """On a terminal, by the app's name alone: a statement over two lines, a wrong one, one that Ctrl-C takes back, one
    that it stops, another; Ctrl-D ends it."""
    line = [sys.executable, "-m", "engram.cli.main", "sql", "social", "--log", story.url, "--master", "local[1]"]
    with Terminal([*line, "--snapshots", story.snapshots, *QUICK_OPTIONS], ROOT) as terminal:

        def answer(typed: str, until: str = "sql> ") -> str:
            terminal.type(typed)
            return terminal.shown(until, START_S)

        assert "Tables: events, log, state." in terminal.shown("sql> ", START_S)
        answer("select state:name::string as name from state\n", until="  -> ")
        states = answer("where entity = 'user' and key = 'user5';\n")
        wrong = answer("select * from user;\n")
        answer("select nonsense\n", until="  -> ")
        taken_back = terminal.interrupt("sql> ", START_S)
        answer("select 'it has' || ' begun'; select count(*) from range(1000000000000);\n", until="it has begun")
        stopped = terminal.interrupt("sql> ", START_S)
        last = answer("select 'still' || ' here' as word;\n")
        terminal.type("\x04")

        assert terminal.process.wait(START_S) == 0
    assert re.findall(r"\w+", states.partition(";")[2]) == ["name", "User5"]
    assert "engram: Spark cannot run the statement: The table or view `user` cannot be found" in wrong
    assert "engram: " not in taken_back
    assert "Stopped." in stopped
    assert "still here" in last


def test_the_command_answers_statements_and_ends_at_a_wrong_one(either: Story):
    """From a pipe: JSON on stdout, one sentence on stderr, exit code 2."""
    said = command(
        *("sql", SOCIAL, "--log", either.url, "--snapshots", either.snapshots, "--at", "noon", "--format", "json"),
        *("--master", "local[1]"),
        stdin="select key, size(following) as f from user where key = 'user1'; -- a ; comment\nselect * from nothing",
    )

    assert json.loads(said.stdout) == {"key": "user1", "f": 3}
    assert said.returncode == 2
    (line,) = said.stderr.splitlines()
    assert line.startswith("engram: Spark cannot run the statement: The table or view `nothing` cannot be found")


def test_export_writes_a_database_for_datasette(either: Story, tmp_path: Path):
    """Several tables in one file, each with its key; and how many rows."""
    target = tmp_path / "social.db"
    said = command(
        *("export", SOCIAL, "user", "most_followed", "--log", either.url, "--snapshots", either.snapshots),
        *("--to", str(target), "--master", "local[1]", "--json"),
    )

    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)["rows"] == {"user": 24, "most_followed": 23}
    db = sqlite3.connect(target)
    assert db.execute("select row from most_followed order by score desc, row limit 1").fetchone() == ("user10",)
    db.close()
