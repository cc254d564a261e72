"""The embedded log: what it refuses, what it leaves on the disk, and how it wakes its readers."""

from __future__ import annotations

import os
import select
import signal
import sqlite3
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from engram.codec.record import Kind, Origin
from engram.errors import Corrupt, Misuse, Unavailable
from engram.log.base import Entry
from engram.log.open import open_log
from engram.log.sqlite import SqliteLog
from engram.model.effects import OutEvent
from engram.testing import LogConformance

READER = """
import sys
from pathlib import Path
from engram.log.sqlite import SqliteLog

watch = SqliteLog(Path(sys.argv[1]), "app").watch()
print("watching", flush=True)
sys.stdin.read()
"""


class TestSqliteLog(LogConformance):
    def make(self, tmp_path, app, partitions):
        return SqliteLog(tmp_path / "log.db", app, partitions=partitions, create=True)

    def reopen(self, log, tmp_path, app, partitions):
        return SqliteLog(tmp_path / "log.db", app, partitions=partitions)

    def url(self, tmp_path):
        return f"sqlite:{tmp_path / 'log.db'}"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "log.db"


@pytest.fixture
def log(path):
    log = SqliteLog(path, "app", partitions=2, create=True)
    yield log
    log.close()


def entry(payload: bytes = b"payload", partition: int = 0) -> Entry:
    return Entry(partition, Kind.COMMANDS, 0, payload)


# Opening


def test_a_log_is_not_made_unless_asked(path):
    """Opening a log that is not there is refused, and makes neither file nor folder."""
    with pytest.raises(Misuse, match="There is no log at"):
        SqliteLog(path, "app", partitions=2)
    assert not path.parent.exists()


def test_opening_takes_the_number_of_partitions_that_the_log_has(log, path):
    """Without a number of partitions, the log's own is taken."""
    again = SqliteLog(path, "app")
    again.close()
    assert again.partitions == 2


@pytest.mark.parametrize("partitions", [None, 0, -1, 1_000_000])
def test_a_new_log_needs_a_sensible_number_of_partitions(path, partitions):
    """A log is made with 1 to 32,768 partitions; anything else is refused."""
    with pytest.raises(Misuse, match=f"from 1 to 32768, not {partitions}"):
        SqliteLog(path, "app", partitions=partitions, create=True)


def test_a_file_that_is_not_sqlite_is_refused(tmp_path):
    """A file of another kind is refused and left as it is."""
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but a text of some length\n" * 100)
    before = path.read_bytes()
    with pytest.raises(Misuse, match="it is no SQLite file"):
        SqliteLog(path, "app", partitions=2, create=True)
    assert path.read_bytes() == before


def test_a_sqlite_file_of_somebody_else_is_refused(tmp_path):
    """A SQLite file that is no log is refused and left as it is, journal mode included."""
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as db:
        db.execute("create table customer (name text)")
    db.close()
    before = path.read_bytes()
    with pytest.raises(Misuse, match="not an Engram log"):
        SqliteLog(path, "app", partitions=2, create=True)
    assert path.read_bytes() == before


def test_a_log_of_a_later_format_is_refused(log, path):
    """A log whose format this Engram does not know is refused."""
    with sqlite3.connect(path) as db:
        db.execute("update meta set value = '99' where name = 'format'")
    db.close()
    with pytest.raises(Misuse, match="has format 99; this Engram reads format 2"):
        SqliteLog(path, "app")


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    """Where no folder can be, no log can be kept: refused in a sentence that names the place."""
    (tmp_path / "file").write_text("in the way")
    path = tmp_path / "file" / "folder" / "log.db"
    with pytest.raises(Misuse, match=rf"The folder {path.parent} is not writable"):
        SqliteLog(path, "app", partitions=2, create=True)


def test_a_path_that_is_a_folder_is_refused(tmp_path):
    """A folder is no log."""
    with pytest.raises(Misuse, match="cannot be opened"):
        SqliteLog(tmp_path, "app", partitions=2, create=True)


@pytest.mark.parametrize("url", ["log.db", "sqlite:", "postgres:x", ""])
def test_a_url_that_names_no_log_is_refused(url):
    """Only `sqlite:PATH` names a log; the message says how to write it."""
    with pytest.raises(Misuse, match="write sqlite:PATH"):
        open_log(url, "app", partitions=1, create=True)


def test_a_url_opens_the_log_at_its_path(log, path):
    """`sqlite:PATH` opens the log at PATH."""
    log.append([entry(b"by path")])
    again = open_log(f"sqlite:{path}", "app")
    assert [record.payload for record in again.read(0, 0, limit=1)] == [b"by path"]
    again.close()


# Content


def test_a_record_of_an_unknown_kind_is_corrupt(log, path):
    """A record whose kind nobody knows stops the reader with its place; what is before it can be read."""
    log.append([entry(), entry()])
    with sqlite3.connect(path) as db:
        db.execute("update record set kind = 'surprise' where offset = 1")
    db.close()
    assert [record.offset for record in log.read(0, 0, limit=1)] == [0]
    with pytest.raises(Corrupt, match=r"Partition 0 of .*log\.db.*surprise"):
        log.read(0, 0, limit=2)


def test_it_knows_the_greatest_origin(log):
    """The embedded log tells the greatest origin exactly, as numbers."""
    for origin in (Origin(9, 0, 0), Origin(10, 0, 0), Origin(10, 0, 10), Origin(10, 0, 9), Origin(9, 9, 9)):
        log.append([Entry(1, Kind.MESSAGES, 0, b"", (0, origin))])
    assert log.last_origin(1, 0) == Origin(10, 0, 10)


def test_it_knows_exactly_who_has_news(log, path):
    """Also of what another process has appended, of records that are in a partition with large numbers, and of many
    partitions at once."""
    log.append([entry(b"first", 1)])
    other = SqliteLog(path, "app")
    other.append([entry(b"second", 1)])
    other.close()
    asked = [log.news({0: 0, 1: offset}) for offset in range(4)]
    many = SqliteLog(path.with_name("many.db"), "app", partitions=1 << 15, create=True)
    many.append([entry(b"last", many.partitions - 1), entry(b"in between", 77)])
    of_all = many.news(dict.fromkeys(range(many.partitions), 0))
    many.close()
    assert asked == [[1], [1], [], []]
    assert sorted(of_all) == [77, (1 << 15) - 1]


def test_a_commit_is_synced_to_the_disk(log, path):
    """The log is in WAL mode, and every connection of it syncs fully."""
    assert log._db.execute("pragma journal_mode").fetchone() == ("wal",)
    assert log._db.execute("pragma synchronous").fetchone() == (2,)


def test_people_read_a_log_by_partition_and_offset(log, path):
    """A log opens in any SQLite tool, where each record has its partition and offset."""
    log.append([entry(b"a", 0), entry(b"b", 1), entry(b"c", 1)])
    with sqlite3.connect(path) as db:
        rows = db.execute("select partition, offset, kind, payload from record order by 1, 2").fetchall()
    db.close()
    assert rows == [(0, 0, "commands", b"a"), (1, 0, "commands", b"b"), (1, 1, "commands", b"c")]


def test_storage_that_fails_is_unavailable_and_nothing_is_appended(log, path):
    """When SQLite cannot write, `append` raises `Unavailable`, says that nothing was appended, and that is so."""
    log.append([entry(b"before")])
    log._db.execute("pragma query_only = on")
    with pytest.raises(Unavailable, match="Nothing was appended"):
        log.append([entry(b"lost"), entry(b"lost", 1)])
    log._db.execute("pragma query_only = off")
    assert log.append([entry(b"after"), entry(b"after", 1)]) == [1, 0]


def test_an_append_that_fails_half_way_is_taken_back(log):
    """When an append fails after some of its records were written, they are gone again."""
    broken = OutEvent(0, 0, 0, 0, "event", 1, 0, "key", b"\xff is no text")
    with pytest.raises(UnicodeDecodeError):
        log.append([entry(b"lost"), entry(b"lost", 1)], [broken])
    assert (log.end(0), log.end(1)) == (0, 0)
    assert log.append([entry(b"after")]) == [0]


# Waking


def test_a_killed_readers_pipe_is_removed_by_the_next_writer(log, path):
    """A reader that was killed leaves its pipe behind; the next append removes it and reaches the others."""
    watch = log.watch()
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert reader.stdout.readline() == "watching\n"
    wake = path.with_name("log.db-wake")
    log.append([entry()])
    before = len(list(wake.iterdir()))
    reader.send_signal(signal.SIGKILL)
    reader.communicate()
    watch.clear()
    log.append([entry()])
    after = len(list(wake.iterdir()))
    awake = bool(select.select([watch], [], [], 10)[0])
    watch.close()
    assert (before, after, awake) == (2, 1, True)


def test_a_pipe_is_not_taken_for_a_dead_one_before_it_is_open(log, path, monkeypatch):
    """A writer that comes between the making and the opening of a pipe leaves it alone."""
    real_open = os.open

    def open_after_an_append(file, flags, *args, **how):
        if str(file).startswith(str(path.with_name("log.db-wake"))) and flags & os.O_RDWR:
            log.append([entry(b"in between")])
        return real_open(file, flags, *args, **how)

    monkeypatch.setattr(os, "open", open_after_an_append)
    watch = log.watch()
    monkeypatch.undo()
    watch.clear()
    log.append([entry(b"afterwards")])
    awake = bool(select.select([watch], [], [], 10)[0])
    watch.close()
    assert awake
    assert log.end(0) == 2


def test_who_comes_is_woken_however_long_nobody_has_come(log, path):
    """Whether the folder of pipes has changed a moment ago or long ago, which is when it is not looked into again."""
    other = SqliteLog(path, "app")
    first = log.watch()
    wake = path.with_name("log.db-wake")
    woken = []
    for age_s in (0, 3600, 0, 3600, 0, 0, 0):
        if age_s:
            os.utime(wake, times=(0, wake.stat().st_mtime - age_s))
        log.append([entry()])
        log.append([entry()])
        late = other.watch()
        first.clear()
        log.append([entry()])
        woken.append([bool(select.select([watch], [], [], 10)[0]) for watch in (late, first)])
        late.close()
        log.append([entry()])
    first.close()
    other.close()
    assert woken == [[True, True]] * 7


def test_a_folder_that_has_not_changed_is_not_looked_into(log, path, monkeypatch):
    """To look who is there takes longer than to wake them."""
    watch = log.watch()
    wake = path.with_name("log.db-wake")
    os.utime(wake, times=(0, wake.stat().st_mtime - 3600))
    log.append([entry()])
    looked = []
    real_iterdir = Path.iterdir

    def iterdir(folder):
        looked.append(folder)
        return real_iterdir(folder)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    for _ in range(3):
        log.append([entry()])
    watch.clear()
    log.append([entry()])
    awake = bool(select.select([watch], [], [], 10)[0])
    watch.close()
    assert (looked, awake) == ([], True)


def test_a_full_pipe_does_not_hold_up_a_writer(log, path):
    """A reader that never looks is awake already: appends go on."""
    watch = log.watch()
    with suppress(BlockingIOError):
        while True:
            os.write(watch.fileno(), b"!")
    assert log.append([entry()]) == [0]
    watch.clear()
    watch.close()


def test_nothing_is_left_behind_after_closing(path):
    """After the last one has closed it, a log is one file."""
    log = SqliteLog(path, "app", partitions=2, create=True)
    other = SqliteLog(path, "app")
    watch = other.watch()
    log.append([entry()])
    watch.close()
    other.close()
    log.close()
    assert [file.name for file in path.parent.iterdir()] == ["log.db"]


def test_a_killed_reader_leaves_nothing_once_the_log_is_closed(log, path):
    """Not even a killed reader's pipe, nor its folder, outlives the next append and close."""
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert reader.stdout.readline() == "watching\n"
    reader.send_signal(signal.SIGKILL)
    reader.communicate()
    log.append([entry()])
    log.close()
    assert [file.name for file in path.parent.iterdir()] == ["log.db"]
