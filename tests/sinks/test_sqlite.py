"""A SQLite table as a sink: each event is one row, whatever is killed."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import pytest
from engram.errors import Misuse, Unavailable
from engram.log.base import Log
from engram.log.cursor import NOWHERE
from engram.log.sqlite import SqliteLog
from engram.log.stream import id_of
from engram.sinks.base import TransactionalSink
from engram.sinks.sqlite import SqliteSink

from tests.log.emitting import NOON, emit, out
from tests.sinks.conftest import Run
from tests.sinks.waiting import until

KILLS = 12

# Brings the events of a log into a table until it is killed; says when it has started.
DELIVERER = """
import sys, threading
from pathlib import Path
from engram.log.sqlite import SqliteLog
from engram.sinks.places import Places
from engram.sinks.runner import SinkRunner
from engram.sinks.sqlite import SqliteSink

log, events = map(Path, sys.argv[1:3])
sink = SqliteSink(events, "social")
sink.at_once = 7
SinkRunner(sink, lambda: SqliteLog(log, "social"), Places(log.with_name("places.db"))).start()
print("started", flush=True)
threading.Event().wait()
"""


def rows(path: Path, table: str = "events", columns: str = "id") -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as db:
        order = "partition, offset, number_in_record, number"
        return db.execute(f"select {columns} from {table} order by {order}").fetchall()


def arrived(path: Path, count: int) -> bool:
    try:
        return path.exists() and len(rows(path)) >= count
    except sqlite3.OperationalError:  # the table is not there yet
        return False


def test_an_event_is_a_row(tmp_path: Path):
    """With all that is known of it; the body is JSON that SQLite reads."""
    sink = SqliteSink(tmp_path / "new" / "events.db", "social")
    sink.deliver([out(2, 7, 3, 1, body={"who": "ada", "whom": "zoë"}, root="0:5.1"), out(2, 8, -10_000, root="0:5.2")])
    sink.close()
    columns = "id, name, version, time, key, cause, root, partition, offset, number_in_record, number, body ->> 'whom'"

    assert rows(tmp_path / "new" / "events.db", columns=columns) == [
        ("2:7.3.1", "followed", 1, "2023-11-14T22:13:20.000Z", "ada", "2:7.3", "0:5.1", 2, 7, 3, 1, "zoë"),
        (
            "2:8.-10000.0",
            "followed",
            1,
            "2023-11-14T22:13:20.000Z",
            "ada",
            "2:8.-10000",
            "0:5.2",
            2,
            8,
            -10_000,
            0,
            "bob",
        ),
    ]


def test_the_sink_knows_how_far_it_is(tmp_path: Path):
    """For each partition, also after it was opened again; what is not after that is left out."""
    first = SqliteSink(tmp_path / "events.db", "social")
    first.deliver([out(0, 0), out(1, 4), out(0, 2, 1)])
    first.close()
    sink = SqliteSink(tmp_path / "events.db", "social")
    before = [sink.place(partition) for partition in range(3)]
    sink.deliver([out(0, 0), out(1, 4), out(0, 2, 1), out(1, 5)])
    sink.close()

    assert isinstance(sink, TransactionalSink)
    assert before == [(2, 1, 0), (4, 0, 0), NOWHERE]
    assert rows(tmp_path / "events.db") == [("0:0.0.0",), ("0:2.1.0",), ("1:4.0.0",), ("1:5.0.0",)]


def test_tables_of_one_file_are_sinks_of_their_own(tmp_path: Path):
    """Each has its rows and its place."""
    one = SqliteSink(tmp_path / "events.db", "social", table="one")
    two = SqliteSink(tmp_path / "events.db", "social", table="two")
    one.deliver([out(0, 0)])
    two.deliver([out(0, 0), out(0, 1)])

    assert (one.place(0).offset, two.place(0).offset) == (0, 1)
    one.close()
    two.close()
    assert rows(tmp_path / "events.db", "two") == [("0:0.0.0",), ("0:1.0.0",)]


def test_a_failure_leaves_neither_rows_nor_place(tmp_path: Path):
    """All of a delivery, or nothing."""
    sink = SqliteSink(tmp_path / "events.db", "social")
    sink.deliver([out(0, 0)])
    with closing(sqlite3.connect(tmp_path / "events.db")) as db:
        db.execute("create trigger no before insert on events when new.offset = 2 begin select raise(abort, 'no'); end")
    with pytest.raises(Unavailable, match=r"events.db\?table=events does not take events: no"):
        sink.deliver([out(0, 1), out(0, 2)])

    assert sink.place(0) == (0, 0, 0)
    sink.close()
    assert rows(tmp_path / "events.db") == [("0:0.0.0",)]


def test_what_is_not_ours_is_refused(tmp_path: Path):
    """A log, a file of something else, another's table, another app's: said at once, and nothing is changed."""
    SqliteLog(tmp_path / "log.db", "social", partitions=1, create=True).close()
    (tmp_path / "notes.txt").write_text("remember the milk, " * 100)
    with closing(sqlite3.connect(tmp_path / "other.db")) as db:
        db.execute("create table events (what text)")
    shop = SqliteSink(tmp_path / "shop.db", "shop")
    shop.deliver([out(0, 0)])
    shop.close()
    (tmp_path / "file").touch()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for name, said in {
        "log.db": "is a log of Engram's: events go into a file of their own",
        "notes.txt": "is no SQLite file",
        "other.db": "has a table events that is not of this sink: choose another with \\?table=",
        "shop.db": "holds events of app shop, not of social",
        "file/events.db": "file is not a folder",
    }.items():
        with pytest.raises(Misuse, match=said):
            SqliteSink(tmp_path / name, "social")

    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_two_that_deliver_at_once_make_no_doubles(log: Log, run: Run, tmp_path: Path):
    """As when an app is started again before the one before is gone."""
    runners = [run(SqliteSink(tmp_path / "events.db", "social")) for _ in range(2)]
    events = [event for _ in range(30) for event in emit(log, [0, 1, 2, 1])]
    until(lambda: all(runner.status().behind == 0 for runner in runners))
    until(partial(arrived, tmp_path / "events.db", len(events)))

    assert [runner.status().problem for runner in runners] == ["", ""]
    assert sorted(rows(tmp_path / "events.db")) == sorted((id_of(event),) for event in events)


def test_killed_deliverers_neither_lose_nor_double_an_event(log: Log, path: Path, tmp_path: Path):
    """After SIGKILLs at random moments, while events come, the table has each once, and its place is its last row."""
    chance = random.Random(20240101)
    table = tmp_path / "events.db"
    command = [sys.executable, "-c", DELIVERER, str(path), str(table)]
    events = emit(log, [0, 1, 2] * 20)
    for kill in range(KILLS + 1):
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == b"started\n"
                for _ in range(10):
                    events += emit(log, chance.choices(range(3), k=chance.randrange(1, 30)), time=NOON + kill)
                if kill == KILLS:
                    until(partial(arrived, table, len(events)), "the end")
                else:
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(chance.uniform(0, 0.05))
            finally:
                process.send_signal(signal.SIGKILL)
        with closing(SqliteSink(table, "social")) as sink:
            places = [sink.place(partition) for partition in range(3)]
        have = rows(table, columns="partition, offset, number_in_record, number")
        for partition, place in enumerate(places):
            assert max((row[1:] for row in have if row[0] == partition), default=tuple(NOWHERE)) == place

    assert sorted(rows(table)) == sorted((id_of(event),) for event in events)
