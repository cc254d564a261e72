"""Positions of the log before a repartition: refused where they would be taken for something else."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from engram.codec.record import Kind
from engram.errors import Foreign, Misuse
from engram.image.contents import KeyRow, Memory, SessionRow
from engram.image.quarantine import QuarantineRow
from engram.log.base import Entry
from engram.log.cursor import Cursor, Place
from engram.log.memory import MemoryLog
from engram.log.partitioner import partition_of
from engram.model.position import Position
from engram.model.token import Token
from engram.reshape.memory import reshape
from engram.reshape.plan import Place as Where
from engram.reshape.plan import Plan
from engram.serving.bounds import COOKIE, Bounds
from engram.sinks.places import Places
from engram.sinks.runner import SinkRunner
from starlette.requests import Request

LOG = MemoryLog("app", 4, base=100)


def request(**cookies: str) -> Request:
    pairs = "; ".join(f"{name.replace('_', '-')}={value}" for name, value in cookies.items())
    return Request({"type": "http", "headers": [(b"cookie", pairs.encode())]})


def test_a_token_of_before_is_refused():
    """A position too; those of the new log are good, and a browser's old cookie is forgotten without a word."""
    bounds = Bounds(LOG)
    before = str(Token("app", 4, {1: 99}))

    with pytest.raises(Foreign, match="Record 99 of partition 1 is of the log before its number of partitions was"):
        bounds.asked(request(), before)
    with pytest.raises(Misuse, match=r"this one begins at record 100\. Ask without it\."):
        bounds.asked(request(), "1:99.0")
    assert bounds.asked(request(), "1:100.0").token == bounds.of(Position(1, 100, 0))
    assert bounds.asked(request(**{COOKIE: before}), None).token == bounds.of()


def test_a_sink_goes_on_after_the_events_of_before(tmp_path: Path):
    """Where it was in the old log says nothing about the new one: all that is there comes after it."""
    places = Places(tmp_path / "places.db")
    places.remember("sink", {0: Place(7, 0, 0)})
    runner = SinkRunner(SimpleNamespace(name="sink"), lambda: LOG, places)

    assert runner._cursor(LOG) == Cursor("app", 4)
    places.close()


def test_a_log_with_a_base_begins_there():
    """The first record has that offset, in every partition."""
    log = MemoryLog("app", 2, base=100)
    assert [(log.start(p), log.end(p)) for p in range(2)] == [(100, 100)] * 2
    assert log.append([Entry(1, Kind.TICK, 0, b"")]) == [100]


def memory_of(**more: object) -> Memory:
    return Memory(
        **{"offset": 50, "epoch": 0, "app_version": 1, "time": 9, "sessions": [], "keys": [], "origins": []}
        | {"quarantine": [], "quarantined": 0}
        | more
    )


def plan_of(partitions: int, to: int, *, ends: int = 60) -> Plan:
    where = Where(log="memory:", snapshots="memory:")
    return Plan(
        reference="",
        app="app",
        source=where,
        target=where,
        partitions=partitions,
        to=to,
        manifests=(None,) * partitions,
        ends=(ends,) * partitions,
        version=1,
    )


def test_windows_are_merged_by_what_is_newest():
    """Of a session the greatest number, with its last use counted back from the end; keys in turns, each once."""
    one = memory_of(
        sessions=[SessionRow("s", 3, 49, "reply", "1"), SessionRow("t", 0, 10, "reply", "2")],
        keys=[KeyRow(key, "", "reply", "0") for key in ("old", "both", "new")],
    )
    other = memory_of(
        offset=30,
        time=5,
        sessions=[SessionRow("s", 4, 29, "reply", "3")],
        keys=[KeyRow(key, "", "reply", "0") for key in ("other", "both")],
    )
    memory, _ = reshape(plan_of(2, 1), 0, {0: one, 1: other})

    assert [(row.session, row.sequence, row.offset) for row in memory.sessions] == [("s", 4, 59), ("t", 0, 20)]
    assert [row.idempotency_key for row in memory.keys] == ["old", "other", "both", "new"]
    assert (memory.offset, memory.epoch, memory.time, memory.origins) == (61, 60, 5, [])


def test_failed_commands_get_places_of_their_own():
    """Two of the same place come together without losing one; what cannot be placed is counted all the same."""
    plan = plan_of(2, 3)
    keys = {
        new: next(k for k in map(str, range(99)) if (partition_of(k, 2), partition_of(k, 3)) == (1, new))
        for new in range(3)
    }
    rows = [QuarantineRow(5, new, "c", key, 1, "{}", error="E") for new, key in keys.items()]
    unread = QuarantineRow(6, 0, "", "")
    everywhere = QuarantineRow(7, 0, "rule", "*")
    old = memory_of(quarantine=[*rows, unread, everywhere], quarantined=9)
    home = plan.home
    found = [reshape(plan, new, {0: memory_of(), 1: old}) for new in range(3)]

    kept = {(row.key, row.offset) for memory, _ in found for row in memory.quarantine}
    shared = {("*", 60)} if home == 1 else set()
    assert kept == {*((key, 60) for key in keys.values()), ("", 60), *shared}
    assert sum(memory.quarantined for memory, _ in found) == 9
    first = next(memory for memory, _ in found if memory.quarantine)
    assert "(was 1:5." in first.quarantine[0].error
