"""A SQLite table as a sink: a row for each event, written together with how far the table is."""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from engram.errors import Misuse, Unavailable
from engram.log.cursor import NOWHERE, Place, place_of
from engram.log.stream import cause_of, id_of, time_text
from engram.model.effects import OutEvent

_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_OWN = "engram_sink"
_BUSY_SECONDS = 10.0

_COLUMNS = (
    "id", "name", "version", "time", "key", "body", "cause", "root",
    "partition", "offset", "number_in_record", "number",
)  # fmt: skip
_SCHEMA = """
create table if not exists {table} (
    id text not null primary key,
    name text not null,
    version integer not null,
    time text not null,
    key text not null,
    body text not null,
    cause text not null,
    root text not null,
    partition integer not null,
    offset integer not null,
    number_in_record integer not null,
    number integer not null,
    unique (partition, offset, number_in_record, number)
)
"""
# Of every table that is a sink: whose events it holds, and which were the last.
_OWN_SCHEMA = f"""
create table if not exists {_OWN} (
    table_name text not null,
    app text not null,
    partition integer not null,
    offset integer not null,
    number_in_record integer not null,
    number integer not null,
    primary key (table_name, partition)
) without rowid
"""


class SqliteSink:
    """See `engram.sinks.base.TransactionalSink`. Events and place are committed together, so a crash at any moment, a
    loss of power included, neither loses nor doubles one; nor do two processes that deliver at once."""

    at_once = 1000

    def __init__(self, path: Path, app: str, *, table: str = "events") -> None:
        """Looks at what is there, and makes nothing yet. Raises `Misuse` when events cannot be kept there."""
        if not _TABLE.fullmatch(table) or table == _OWN or table.lower().startswith("sqlite_"):
            raise Misuse(f"{table!r} is no name for a table of events: use letters, digits and _, at most 64.")
        self.name = f"sqlite:{path}?table={table}"
        self._path = path
        self._app = app
        self._table = table
        self._db: sqlite3.Connection | None = None
        self._lock = threading.Lock()
        if path.exists():
            with closing(_opened(path)) as db:
                self._check(db)
        elif path.parent.exists() and not path.parent.is_dir():
            raise Misuse(f"{path.parent} is not a folder, so {path.name} cannot be kept there: choose another path.")

    def place(self, partition: int) -> Place:
        with self._lock, self._spoken_plainly():
            return self._place(self._sql, partition)

    def deliver(self, events: Sequence[OutEvent]) -> None:
        marks = ", ".join("?" * len(_COLUMNS))
        insert = f"insert into {self._table} ({', '.join(_COLUMNS)}) values ({marks}) on conflict do nothing"  # noqa: S608 - checked
        with self._lock, self._spoken_plainly(), _transaction(self._sql) as db:
            last = {p: self._place(db, p) for p in {event.partition for event in events}}
            new = [event for event in events if place_of(event) > last[event.partition]]
            db.executemany(insert, map(_row, new))
            last |= {event.partition: place_of(event) for event in new}
            rows = [(self._table, self._app, partition, *place) for partition, place in last.items()]
            db.executemany(f"insert or replace into {_OWN} values (?, ?, ?, ?, ?, ?)", rows)  # noqa: S608

    def close(self) -> None:
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None

    def _place(self, db: sqlite3.Connection, partition: int) -> Place:
        query = f"select offset, number_in_record, number from {_OWN} where table_name = ? and partition = ?"  # noqa: S608
        row = db.execute(query, (self._table, partition)).fetchone()
        return NOWHERE if row is None else Place(*row)

    @property
    def _sql(self) -> sqlite3.Connection:
        if self._db is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            db = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            try:
                self._check(db)
                db.execute("pragma journal_mode=wal")
                with _transaction(db):
                    db.execute(_SCHEMA.format(table=self._table))
                    db.execute(_OWN_SCHEMA)
            except BaseException:
                db.close()
                raise
            self._db = db
        return self._db

    def _check(self, db: sqlite3.Connection) -> None:
        """Raises `Misuse` when the file is something else, or the table another's."""
        try:
            tables = {name for (name,) in db.execute("select name from sqlite_master where type in ('table', 'view')")}
            if {"meta", "record", "event"} <= tables:
                raise Misuse(f"{self._path} is a log of Engram's: events go into a file of their own.")
            if self._table not in tables:
                return
            columns = {name for _, name, *_ in db.execute(f"pragma table_info({self._table})")}
            apps = {a for (a,) in db.execute(f"select distinct app from {_OWN} where table_name = ?", (self._table,))}  # noqa: S608
        except sqlite3.OperationalError as problem:
            if "no such table" not in str(problem):
                raise Unavailable(f"{self.name} cannot be read: {problem}.") from problem
            columns, apps = set(), set()
        except sqlite3.DatabaseError as problem:
            raise Misuse(f"{self._path} is no SQLite file: choose another path.") from problem
        if columns != set(_COLUMNS):
            raise Misuse(
                f"{self._path} has a table {self._table} that is not of this sink: choose another with ?table=."
            )
        if apps - {self._app}:
            raise Misuse(
                f"The table {self._table} of {self._path} holds events of app {min(apps)}, not of {self._app}: "
                "choose another with ?table=."
            )

    @contextmanager
    def _spoken_plainly(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as problem:
            raise Unavailable(f"{self.name} does not take events: {problem}.") from problem


def _opened(path: Path) -> sqlite3.Connection:
    try:
        # Not read-only: such a connection cannot take away the files that SQLite puts beside a database in WAL mode.
        return sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=_BUSY_SECONDS)
    except sqlite3.Error as problem:
        raise Misuse(f"{path} cannot be opened: {problem}.") from problem


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    db.execute("begin immediate")
    try:
        yield db
        db.execute("commit")
    except BaseException:
        if db.in_transaction:
            db.execute("rollback")
        raise


def _row(event: OutEvent) -> tuple[object, ...]:
    about = id_of(event), event.name, event.version, time_text(event.time), event.key, event.body.decode()
    return *about, cause_of(event), event.root, event.partition, *place_of(event)
