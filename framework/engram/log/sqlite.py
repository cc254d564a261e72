"""The embedded log: one SQLite file that any number of local processes read and append to.

WAL with `synchronous=FULL`: when `append` returns, the records are on the disk. One file for all partitions, so
that one fsync commits whatever arrived together, for whichever partitions.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from engram.codec.record import Kind, Origin, Record
from engram.errors import Corrupt, Misuse, Unavailable
from engram.log.base import Entry, Making, NoLog, Trimmed, Unfinished, check_partitions
from engram.log.memory import bounded
from engram.log.wake import Wake, WakeFolder
from engram.model.effects import OutEvent

FORMAT = 2
_KINDS = {kind.value: kind for kind in Kind}
# Offsets of a partition share one integer key with it, so that a partition's records lie together.
_BITS = 40
_MAX_PARTITIONS = 1 << 15
_NEWS = """
select value >> :bits from json_each(:first)
where exists (select 1 from record where id >= value and id < ((value >> :bits) + 1) << :bits)
"""
_BELOW_ZERO = 100_000_000
# Another process may hold the write lock while the disk syncs; far beyond any healthy fsync.
_BUSY_SECONDS = 30.0
# Records that one transaction removes: others append in between.
_TRIMMED_AT_ONCE = 10_000

_SCHEMA = f"""
create table meta (name text primary key, value text not null) without rowid;
create table record (
    id integer primary key,
    kind text not null,
    time integer not null,
    payload blob not null,
    origin_partition integer,
    origin text,
    partition integer generated always as (id >> {_BITS}) virtual,
    offset integer generated always as (id & {(1 << _BITS) - 1}) virtual
);
create index record_by_origin on record (partition, origin_partition, origin) where origin_partition is not null;
create table event (
    partition integer not null,
    offset integer not null,
    number_in_record integer not null,
    number integer not null,
    name text not null,
    version integer not null,
    time integer not null,
    key text not null,
    body text not null,
    root text not null,
    primary key (partition, offset, number_in_record, number)
) without rowid;
"""


class SqliteLog:
    """See `engram.log.base.Log`. Open it in the process that uses it: it must not cross a fork."""

    def __init__(
        self,
        path: Path,
        app: str,
        *,
        partitions: int | None = None,
        create: bool = False,
        making: Making | None = None,
    ) -> None:
        """Opens the log at `path`, or makes it when `create` and it is not there.

        `partitions` None takes what the log has. Raises `Misuse` when the log is another app's, has another
        number of partitions, or is not a log; and when it is not whole, or was made by another plan than `making`.
        """
        self._path = path
        self._making = making
        self.base = 0
        self.finished = True
        self._lock = threading.Lock()
        self._turn = -1
        self._db: sqlite3.Connection | None = None
        self._wake = WakeFolder(path.with_name(path.name + "-wake"))
        self.app = app
        self.independent = False
        try:
            self.partitions = self._open(partitions, create=create)
        except (sqlite3.Error, OSError) as problem:
            self.close()
            raise Misuse(_opening_problem(path, problem)) from problem
        except Misuse:
            self.close()
            raise

    def _open(self, partitions: int | None, *, create: bool) -> int:
        path = self._path
        new = not path.exists()
        if new and not create:
            raise NoLog(f"There is no log at {path}: check the path, or let `engram run` make it.")
        if new:
            path.parent.mkdir(parents=True, exist_ok=True)
        # Not the file itself: closing a second descriptor of it would drop SQLite's own locks. A folder can be
        # locked as well, and leaves no lock file behind.
        self._turn = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        self._db = _connect(path)
        if new or _is_empty(self._sql):
            self._make(partitions)
        meta = dict(self._sql.execute("select name, value from meta"))
        if int(meta["format"]) != FORMAT:
            raise Misuse(f"The log {path} has format {meta['format']}; this Engram reads format {FORMAT}.")
        if meta["app"] != self.app:
            raise Misuse(f"The log {path} belongs to app {meta['app']!r}, not to {self.app!r}: choose another log.")
        self._check_made(meta)
        self.base = int(meta.get("base", 0))
        held = int(meta["partitions"])
        if partitions not in (None, held):
            raise Misuse(
                f"The log {path} has {held} partitions, not {partitions}. The number is fixed when a log is made: "
                f"use --partitions {held}, or a new log."
            )
        return held

    def _make(self, partitions: int | None) -> None:
        if partitions is None or not 1 <= partitions <= _MAX_PARTITIONS:
            raise Misuse(f"A new log needs a number of partitions from 1 to {_MAX_PARTITIONS}, not {partitions}.")
        with self._transaction():
            if not _is_empty(self._sql):
                return  # another process was faster
            for statement in _SCHEMA.split(";\n"):
                self._sql.execute(statement)
            rows = [("app", self.app), ("partitions", str(partitions)), ("format", str(FORMAT))]
            if self._making is not None:
                rows += [("making", self._making.plan), ("base", str(self._making.base))]
            self._sql.executemany("insert into meta values (?, ?)", rows)

    def _check_made(self, meta: dict[str, str]) -> None:
        self.finished = "making" not in meta
        if self._making is None and not self.finished:
            raise Unfinished.at(self._path)
        if self._making is not None and self._making.plan not in (meta.get("making"), meta.get("made")):
            raise Misuse(f"There is a log at {self._path} already, which is not of this: choose another path.")

    def begin(self, partition: int, progress: Callable[[int, int], None]) -> None:
        """An empty partition ends at its base already."""

    def finish(self) -> None:
        with self._lock, self._durably("append"), self._transaction():
            self._sql.execute("update meta set name = 'made' where name = 'making'")
        self.finished = True

    def append(self, entries: Sequence[Entry], events: Sequence[OutEvent] = ()) -> list[int]:
        check_partitions(entries, self.partitions)
        offsets: list[int] = []
        rows = []
        with self._lock, self._durably("append"), self._transaction():
            ends: dict[int, int] = {}
            for partition, kind, time, payload, origin in entries:
                offset = ends.get(partition)
                if offset is None:
                    offset = self._end(partition)
                ends[partition] = offset + 1
                offsets.append(offset)
                origin_partition, last = (None, None) if origin is None else (origin[0], _origin_text(origin[1]))
                rows.append((partition << _BITS | offset, kind.value, time, payload, origin_partition, last))
            self._sql.executemany(
                "insert into record (id, kind, time, payload, origin_partition, origin) values (?, ?, ?, ?, ?, ?)",
                rows,
            )
            if events:
                self._sql.executemany(
                    "insert or ignore into event values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    [(*event[:8], event.body.decode(), event.root) for event in events],
                )
        self._wake.wake_all()
        return offsets

    def read(self, partition: int, offset: int, *, limit: int) -> list[Record]:
        query = "select id, kind, time, payload from record where id >= ? and id < ? order by id limit ?"
        mask = (1 << _BITS) - 1
        span = partition << _BITS | offset, (partition + 1) << _BITS, limit
        # Closed at once: a cursor that is left half read keeps the WAL from being emptied.
        with self._lock, self._durably("read"), closing(self._sql.execute(query, span)) as rows:
            try:
                found = bounded(Record(partition, i & mask, _KINDS[kind], at, body) for i, kind, at, body in rows)
            except KeyError as problem:
                where = f"Partition {partition} of {self._path}, after record {offset}"
                raise Corrupt(f"{where}: unknown kind of record {problem}") from problem
            # Trimming leaves the last record: where there is none to read, none is missing but those before the base.
            first = found[0].offset if found else self.base
            if offset < first and offset < (start := self._start(partition)):
                raise Trimmed.at(self._path, partition, offset, start)
            return found

    def news(self, offsets: Mapping[int, int]) -> list[int]:
        first = ",".join([str(partition << _BITS | offset) for partition, offset in offsets.items()])
        with self._lock, self._durably("read"):
            return [partition for (partition,) in self._sql.execute(_NEWS, {"bits": _BITS, "first": f"[{first}]"})]

    def start(self, partition: int) -> int:
        with self._lock, self._durably("read"):
            return self._start(partition)

    def _start(self, partition: int) -> int:
        span = partition << _BITS, (partition + 1) << _BITS
        first = self._sql.execute("select min(id) from record where id >= ? and id < ?", span).fetchone()[0]
        return self.base if first is None else first & ((1 << _BITS) - 1)

    def end(self, partition: int) -> int:
        with self._lock, self._durably("read"):
            return self._end(partition)

    def _end(self, partition: int) -> int:
        span = partition << _BITS, (partition + 1) << _BITS
        last = self._sql.execute("select max(id) from record where id >= ? and id < ?", span).fetchone()[0]
        return self.base if last is None else (last & ((1 << _BITS) - 1)) + 1

    def last_origin(self, partition: int, origin_partition: int) -> Origin | None:
        query = (
            "select max(origin) from record "
            "where partition = ? and origin_partition = ? and origin_partition is not null"
        )
        with self._lock, self._durably("read"):
            (greatest,) = self._sql.execute(query, (partition, origin_partition)).fetchone()
        if greatest is None:
            return None
        offset, index, number = map(int, greatest.split("."))
        return Origin(offset, index - _BELOW_ZERO, number)

    def events(self, partition: int, *, after: tuple[int, int, int], limit: int) -> list[OutEvent]:
        query = (
            "select * from event where partition = ? and (offset, number_in_record, number) > (?, ?, ?) "
            "order by offset, number_in_record, number limit ?"
        )
        with self._lock, self._durably("read"):
            rows = self._sql.execute(query, (partition, *after, limit)).fetchall()
        return [OutEvent._make((*fields, body.encode(), root)) for *fields, body, root in rows]

    def trim(self, partition: int, offset: int) -> None:
        first = partition << _BITS
        query = "delete from record where id in (select id from record where id >= ? and id < ? order by id limit ?)"
        while True:
            with self._lock, self._durably("trim"), self._transaction():
                last = max(self.base, min(offset, self._end(partition) - 1))  # the end is known by the last record
                gone = self._sql.execute(query, (first, first | last, _TRIMMED_AT_ONCE)).rowcount
            if gone < _TRIMMED_AT_ONCE:
                return

    def watch(self, partitions: Sequence[int] | None = None) -> Wake:
        return self._wake.join()

    def close(self) -> None:
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None
            if self._turn >= 0:
                os.close(self._turn)
                self._turn = -1
        self._wake.close()

    @property
    def _sql(self) -> sqlite3.Connection:
        if self._db is None:
            raise Misuse(f"The log {self._path} was closed.")
        return self._db

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        # SQLite waits for another writer by looking again after ever longer naps, up to 100 ms. The kernel wakes
        # the next one at once.
        fcntl.flock(self._turn, fcntl.LOCK_EX)
        try:
            self._sql.execute("begin immediate")
            yield
            self._sql.execute("commit")
        except BaseException:
            if self._sql.in_transaction:
                self._sql.execute("rollback")
            raise
        finally:
            fcntl.flock(self._turn, fcntl.LOCK_UN)

    @contextmanager
    def _durably(self, what: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as problem:
            kind = Corrupt if "malformed" in str(problem) or "not a database" in str(problem) else Unavailable
            raise kind(f"The log {self._path} could not {what}: {problem}. Nothing was appended.") from problem


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    if not _is_empty(db):
        db.execute("select value from meta")  # fails on somebody else's database, before that is changed to WAL
    db.execute("pragma journal_mode=wal")
    db.execute("pragma synchronous=full")
    return db


def _is_empty(db: sqlite3.Connection) -> bool:
    return bool(db.execute("select count(*) from sqlite_master").fetchone()[0] == 0)


def _origin_text(origin: Origin) -> str:
    # Padded, so that the order of texts is the order of origins; timers have indices below zero.
    return f"{origin.offset:015}.{origin.index + _BELOW_ZERO:09}.{origin.number:09}"


def _opening_problem(path: Path, problem: Exception) -> str:
    folder = path.parent
    if isinstance(problem, sqlite3.DatabaseError) and "not a database" in str(problem):
        return f"{path} is not an Engram log (it is no SQLite file): choose another path."
    if isinstance(problem, sqlite3.OperationalError) and "no such table" in str(problem):
        return f"{path} is a SQLite file but not an Engram log: choose another path."
    if isinstance(problem, FileExistsError):
        return f"{folder} is not a folder, so the log {path.name} cannot be kept there: choose another path."
    if not os.access(folder, os.W_OK):
        return f"The folder {folder} is not writable, so the log {path.name} cannot be kept there."
    return f"The log {path} cannot be opened: {problem}."
