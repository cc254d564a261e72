"""Commands that wait for their time."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable
from typing import NamedTuple

from engram.model.version import Version

# How many fire with one record; the rest waits for the next, so that a crowd of them does not hold up queries.
FIRED_AT_ONCE = 10_000
# Cancelled timers stay in the heap until they come up; beyond this share it is made anew.
_SLACK = 1000
# Whatever a handler cancels must not stop its partition, so this takes only what `int` takes.
_HANDLE = re.compile(r"([0-9]{1,18})\.(-?[0-9]{1,18})\.([0-9]{1,18})")

# Where it was scheduled, and the entity that it is for: handles of two entities may be the same once the number of
# partitions was changed.
_Place = tuple[int, int, int, str]


class Timer(NamedTuple):
    """A command for the entity `key`, due at a time in milliseconds. The command that scheduled it is at `offset` and
    `index`, and `number` counts what that one scheduled. `body` is its JSON. `root` is the position of the command that
    everything began with."""

    due: int
    offset: int
    index: int  # type: ignore[assignment]  # a field, not tuple.index
    number: int
    key: str
    name: str
    version: Version
    body: str
    root: str = ""

    @property
    def handle(self) -> str:
        return f"{self.offset}.{self.index}.{self.number}"


class Timers:
    """What waits, in the order of due times; of equal ones, in the order in which they were scheduled."""

    def __init__(self, timers: Iterable[Timer] = ()) -> None:
        self._waiting = {timer[1:5]: timer for timer in timers}
        self._heap = [(timer.due, *place) for place, timer in self._waiting.items()]
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._waiting)

    def all(self) -> list[Timer]:
        return list(self._waiting.values())

    def add(self, timer: Timer) -> None:
        self._waiting[timer[1:5]] = timer
        heapq.heappush(self._heap, timer[:5])

    def cancel(self, handle: str, key: str) -> None:
        """Takes a timer of the entity `key` out; one that has fired, or never was, is no mistake."""
        self.take(_place(handle, key))
        if len(self._heap) > 2 * len(self._waiting) + _SLACK:
            self._heap = [(timer.due, *place) for place, timer in self._waiting.items()]
            heapq.heapify(self._heap)

    def take(self, place: _Place) -> Timer | None:
        """The timer, which does not wait any more; None if it was cancelled."""
        return self._waiting.pop(place, None)

    def next_due(self) -> int | None:
        while self._heap and self._heap[0][1:] not in self._waiting:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: int) -> list[_Place]:
        """The places of those that are due, the first so many, in their order; they still wait."""
        found: list[_Place] = []
        while len(found) < FIRED_AT_ONCE and (due := self.next_due()) is not None and due <= now:
            found.append(heapq.heappop(self._heap)[1:])
        return found


def _place(handle: str, key: str) -> _Place:
    found = _HANDLE.fullmatch(handle)
    return (int(found[1]), int(found[2]), int(found[3]), key) if found else (-1, 0, 0, key)
