"""What a log and its snapshots have of each type and version: from headers and columns, without the app's classes."""

from __future__ import annotations

from collections import Counter
from contextlib import closing

from engram.cli.output import show_progress
from engram.codec.check import Held
from engram.codec.record import CommandsHeader, Kind, MessagesHeader, PlainHeader, Record
from engram.errors import Corrupt, Misuse
from engram.log.base import Log
from engram.log.open import open_log
from engram.log.scan import scan
from engram.model.version import Version, read_version
from engram.snapshots.base import Loaded
from engram.snapshots.open import open_store

_RECORDS_PER_LINE = 1000
_READ_EVENTS = 1000
_BEFORE_ALL = (-1, 0, 0)


def held_by_log(url: str, app: str) -> Held:
    """How many commands and events of each name and version there are in a log."""
    held: Held = Counter()
    with closing(open_log(url, app)) as log:
        for partition in range(log.partitions):
            _count_records(log, partition, held)
            _count_events(log, partition, held)
    show_progress("")
    return held


def held_by_snapshots(url: str, app: str) -> Held:
    """How many entities of each name and version there are in the newest snapshots, and commands that wait for their
    time or are quarantined. Raises `Corrupt` for a snapshot that cannot be read."""
    held: Held = Counter()
    store = open_store(url, app, create=False)
    partitions = store.partitions()
    if not partitions:
        raise Misuse(f"There are no snapshots of {app} in {url}: check the place.")
    for partition in partitions:
        newest = next(iter(store.manifests(partition)), None)
        if newest is not None:
            show_progress(f"reading: snapshot of partition {partition}, record {newest.offset:,}")
            try:
                _count_snapshot(store.read(newest), held)
            except Corrupt as problem:
                raise Corrupt(f"The snapshot {newest.name} in {store.place} cannot be read: {problem}") from problem
    show_progress("")
    return held


def _count_records(log: Log, partition: int, held: Held) -> None:
    end = log.end(partition)
    for record in scan(log, partition, end=end):
        if record.offset % _RECORDS_PER_LINE == 0:
            show_progress(f"reading: partition {partition}, record {record.offset:,} of {end:,}")
        try:
            _count_record(record, held)
        except ValueError as problem:
            raise Corrupt(f"Record {record.offset} of partition {partition} has no header: {problem}") from problem


def _count_record(record: Record, held: Held) -> None:
    head, _, _ = record.payload.partition(b"\n")
    if record.kind in (Kind.COMMANDS, Kind.MESSAGES):
        form = CommandsHeader if record.kind is Kind.COMMANDS else MessagesHeader
        header = form.read(head)
        for number, count in Counter(header.which).items():
            name, version = header.types[number]
            held["command", name, version] += count
    elif record.kind is Kind.PLAIN:
        plain = PlainHeader.read(head)
        held["command", plain.name, _stated(plain.version)] += 1


def _count_events(log: Log, partition: int, held: Held) -> None:
    after = _BEFORE_ALL
    while events := log.events(partition, after=after, limit=_READ_EVENTS):
        for event in events:
            held["event", event.name, event.version] += 1
        after = events[-1][1:4]


def _count_snapshot(loaded: Loaded, held: Held) -> None:
    for name, version, keys, _, _ in loaded.columns:
        held["entity", name, version] += len(keys)
    memory = loaded.memory
    held.update(("command", timer.name, timer.version) for timer in memory.timers)
    held.update(("command", row.command, row.version) for row in memory.quarantine if row.command)


def _stated(version: Version) -> Version:
    try:
        return version if isinstance(version, int) else read_version(version)
    except ValueError:
        return version
