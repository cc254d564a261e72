"""How far sinks are that cannot keep it themselves: a small SQLite file beside the log."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Mapping
from pathlib import Path

from engram.errors import Unavailable
from engram.log.cursor import NOWHERE, Place

_SCHEMA = """
create table if not exists place (
    sink text not null,
    partition integer not null,
    offset integer not null,
    number_in_record integer not null,
    number integer not null,
    primary key (sink, partition)
) without rowid
"""


class Places:
    """The last place that each sink has taken, by partition. Made on first use; may be used from any thread.

    After a loss of power it may know less than the truth: then some events are delivered again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db: sqlite3.Connection | None = None
        self._lock = threading.Lock()

    def place(self, sink: str, partition: int) -> Place:
        query = "select offset, number_in_record, number from place where sink = ? and partition = ?"
        try:
            with self._lock:
                row = self._sql.execute(query, (sink, partition)).fetchone()
        except sqlite3.Error as problem:
            raise Unavailable(f"How far the sinks are cannot be read from {self._path}: {problem}.") from problem
        return NOWHERE if row is None else Place(*row)

    def remember(self, sink: str, places: Mapping[int, Place]) -> None:
        rows = [(sink, partition, *place) for partition, place in places.items()]
        try:
            with self._lock, self._sql as db:
                db.executemany("insert or replace into place values (?, ?, ?, ?, ?)", rows)
        except sqlite3.Error as problem:
            raise Unavailable(f"How far the sinks are cannot be kept in {self._path}: {problem}.") from problem

    def close(self) -> None:
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None

    @property
    def _sql(self) -> sqlite3.Connection:
        if self._db is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self._path, check_same_thread=False)
            self._db.execute("pragma journal_mode=wal")
            self._db.execute("pragma synchronous=normal")
            self._db.execute(_SCHEMA)
        return self._db
