"""The events of all partitions as one stream: read from a cursor on, bounded, and waited for."""

from __future__ import annotations

import heapq
import os
import select
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pydantic_core

from engram.log.base import Log, Watch
from engram.log.cursor import Cursor, place_of
from engram.log.memory import drain
from engram.model.effects import OutEvent

# What is fetched of a partition at a time, and kept until its turn comes.
_FETCHED = 100
# What one read brings together, on top of what waits for its turn.
_READ_BYTES = 4 * 1024 * 1024
# How often to look where nothing tells of new events.
_NAP_S = 0.5
# Every append of a busy app tells that there may be events; looking at every one would take the processor from it.
_APART_S = 0.02


class EventReader:
    """Reads on from a cursor: the events of a partition in their order, those of several by their times, as far as
    they are there. For one thread at a time."""

    def __init__(self, log: Log, cursor: Cursor) -> None:
        self._log = log
        self._cursor = cursor
        self._fetched: dict[int, deque[OutEvent]] = {p: deque() for p in range(log.partitions)}
        self._ahead = [cursor.place(p) for p in range(log.partitions)]  # after what was fetched

    @property
    def cursor(self) -> Cursor:
        """After the last event that `read` returned."""
        return self._cursor

    def read(self, limit: int) -> list[OutEvent]:
        """Up to `limit` events, and not much more than 4 MiB of them, without waiting; none when it is at the end."""
        found: list[OutEvent] = []
        size = 0
        for event in heapq.merge(*map(self._waiting, self._fetched), key=_by_time):
            self._fetched[event.partition].popleft()
            found.append(event)
            size += len(event.body)
            if len(found) == limit or size >= _READ_BYTES:
                break
        for partition, event in {event.partition: event for event in found}.items():
            self._cursor = self._cursor.moved(partition, place_of(event))
        return found

    def waiting(self, most: int) -> int:
        """How many events there are after the cursor; counts no further than `most`, which are brought into memory."""
        for partition in self._fetched:
            while (left := most - sum(map(len, self._fetched.values()))) > 0:
                if not self._fetch(partition, left):
                    break
        return min(most, sum(map(len, self._fetched.values())))

    def _waiting(self, partition: int) -> Iterator[OutEvent]:
        fetched = self._fetched[partition]
        while fetched or self._fetch(partition, _FETCHED):
            # Taken away by whoever gets it: one that is not taken is the first again next time.
            yield fetched[0]

    def _fetch(self, partition: int, limit: int) -> bool:
        """Whether there were more events of the partition. It never goes back: for Kafka that is a long way."""
        more = self._log.events(partition, after=self._ahead[partition], limit=limit)
        if more:
            self._fetched[partition].extend(more)
            self._ahead[partition] = place_of(more[-1])
        return bool(more)


class NewEvents:
    """Tells that there may be new events in a log. Clear first, then read to the end, then wait: nothing is missed.

    `wake` may be called from any thread; the rest belongs to one.
    """

    def __init__(self, log: Log) -> None:
        # A log whose partitions are stored apart has its events apart from the records too, and its watches tell of
        # records alone: they would bring all those here, and no event.
        self._watch: Watch | None = None if log.independent else log.watch()
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._cleared = 0.0

    def clear(self) -> None:
        drain(self._read)
        if self._watch is not None:
            self._watch.clear()
        self._cleared = time.monotonic()

    def wait(self, seconds: float | None = None) -> None:
        """Returns when there may be something new, at once after `wake`, and after `seconds` at the latest."""
        if self._watch is None:
            select.select([self._read], [], [], _NAP_S if seconds is None else min(seconds, _NAP_S))
            return
        told, _, _ = select.select([self._read, self._watch.fileno()], [], [], seconds)
        if self._read not in told:
            select.select([self._read], [], [], max(0.0, self._cleared + _APART_S - time.monotonic()))

    def wake(self) -> None:
        with suppress(BlockingIOError):  # full: it is awake already
            os.write(self._write, b"!")

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
        os.close(self._read)
        os.close(self._write)


def id_of(event: OutEvent) -> str:
    """What names an event, once and for all: `3:1042.7.0` is the first that the command at 3:1042.7 emitted."""
    return f"{event.partition}:{place_of(event)}"


def cause_of(event: OutEvent) -> str:
    """The position of the command that emitted it."""
    return f"{event.partition}:{event.offset}.{event.index}"


def time_text(milliseconds: int) -> str:
    try:
        moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{milliseconds} ms"  # beyond any calendar
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def described(event: OutEvent) -> dict[str, Any]:
    """An event as JSON, as all doors show it; of the version that it was emitted with."""
    return {
        "id": id_of(event),
        "time": time_text(event.time),
        "name": event.name,
        "version": event.version,
        "key": event.key,
        "body": pydantic_core.from_json(event.body),
        "cause": cause_of(event),
        "root": event.root,
    }


def _by_time(event: OutEvent) -> int:
    return event.time
