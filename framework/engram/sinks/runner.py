"""Brings the events of a log to a sink: one thread for each, which never gives up and disturbs nobody."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from typing import Any

import structlog

from engram.clock import Clock, system_clock
from engram.errors import EngramError, Misuse
from engram.log.base import Log
from engram.log.cursor import NOWHERE, Cursor, Place, place_of
from engram.log.stream import EventReader, NewEvents, time_text
from engram.model.effects import OutEvent
from engram.sinks.base import NotNow, Sink, TransactionalSink
from engram.sinks.places import Places

_READ_EVENTS = 200
_COUNTED = 1000
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 60.0
# A delivery that is under way at the end is waited for, then cut off: it comes again after the next start.
_END_S = 3.0

_logger = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkStatus:
    """How a sink is. `delivered` counts since the start; `behind` are events that are known to wait, 1,000 at most.

    `problem` is empty while it takes events; otherwise why it did not the last time, and `since` when the first try
    failed.
    """

    name: str
    delivered: int
    behind: int
    problem: str
    since: str | None

    def json(self) -> dict[str, Any]:
        return asdict(self)


class SinkRunner:
    """Reads, delivers, remembers, on a thread of its own with a log of its own.

    What the sink does not take is tried again for ever, each time after a longer pause, up to `longest_pause` seconds,
    with some chance in it; nothing is left out. Every failure is logged and in the status.
    """

    def __init__(
        self,
        sink: Sink,
        open_log: Callable[[], Log],
        places: Places,
        *,
        clock: Clock = system_clock,
        longest_pause: float = _LONGEST_PAUSE_S,
    ) -> None:
        self._sink = sink
        self._open_log = open_log
        self._places = places
        self._clock = clock
        self._longest_pause = longest_pause
        self._ending = threading.Event()
        self._news: NewEvents | None = None
        self._lock = threading.Lock()
        self._delivered = 0
        self._behind = 0
        self._in_hand = 0  # read and not delivered, when the delivery began to fail
        self._problem = ""
        self._since: int | None = None
        self._failures = 0
        self._thread = threading.Thread(target=self._run, name=f"engram-sink {sink.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def status(self) -> SinkStatus:
        """From any thread."""
        with self._lock:
            return SinkStatus(
                name=self._sink.name,
                delivered=self._delivered,
                behind=self._behind,
                problem=self._problem,
                since=None if self._since is None else time_text(self._since),
            )

    def stop(self) -> None:
        """Ends soon, whatever the sink does."""
        self._ending.set()
        with self._lock:
            if self._news is not None:
                self._news.wake()
        self._thread.join(_END_S)
        if self._thread.is_alive():
            self._sink.close()
            self._thread.join(_END_S)

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                with closing(self._open_log()) as log:
                    self._follow(log)
            except Exception as problem:  # noqa: BLE001 - whatever is wrong with a sink, it is reported and tried again
                self._hold_back(problem)
        self._sink.close()

    def _follow(self, log: Log) -> None:
        """Delivers until the end; raises when the log cannot be read, or is not the sink's."""
        reader = EventReader(log, self._cursor(log))
        news = NewEvents(log)
        with self._lock:
            self._news = news
        try:
            while not self._ending.is_set():
                news.clear()
                events = reader.read(_READ_EVENTS)
                self._count(behind=len(events))
                for piece in _pieces(events, self._sink.at_once):
                    self._deliver(piece, reader)
                if not events and not self._ending.is_set():
                    self._succeeded()  # the log can be read, and nothing waits
                    news.wait()
        finally:
            with self._lock:
                self._news = None
            news.close()

    def _cursor(self, log: Log) -> Cursor:
        """Where to go on. Raises `Misuse` when the sink is further than the log, or elsewhere: it is another's."""
        cursor = Cursor(log.app, log.partitions)
        for partition in range(log.partitions):
            place = self._place(partition)
            # Places before the base are of the log that this one was made from: all that is here comes after them.
            if place != NOWHERE and place.offset >= log.base:
                cursor = cursor.moved(partition, place)
                before = place._replace(number=place.number - 1)
                found = log.events(partition, after=before, limit=1)
                if [place_of(event) for event in found] != [place]:
                    raise Misuse(
                        f"{self._sink.name} has events up to {partition}:{place}, which the log does not have: it was "
                        "filled from another log. Choose a new sink, or bring that log back."
                    )
        return cursor

    def _place(self, partition: int) -> Place:
        if isinstance(self._sink, TransactionalSink):
            return self._sink.place(partition)
        return self._places.place(self._sink.name, partition)

    def _deliver(self, events: Sequence[OutEvent], reader: EventReader) -> None:
        left = events
        failed = False
        while not self._ending.is_set():
            try:
                if failed and isinstance(self._sink, TransactionalSink):  # it may have failed after its commit
                    left = [event for event in events if place_of(event) > self._sink.place(event.partition)]
                if left:
                    self._sink.deliver(left)
                if not isinstance(self._sink, TransactionalSink):
                    last = {event.partition: place_of(event) for event in events}
                    self._places.remember(self._sink.name, last)
            except Exception as problem:  # noqa: BLE001 - as above
                self._look_ahead(reader, new=not failed)
                failed = True
                self._hold_back(problem)
            else:
                self._count(delivered=len(events))
                self._succeeded()
                return

    def _look_ahead(self, reader: EventReader, *, new: bool) -> None:
        """Counts what has come while the sink takes nothing."""
        if new:
            self._in_hand = self._behind
        with suppress(EngramError):  # the count is for people; the log's own problem comes when it is read
            self._count(behind=min(self._in_hand + reader.waiting(_COUNTED), _COUNTED))

    def _hold_back(self, problem: Exception) -> None:
        """Notes what went wrong, and returns when it is time to try again."""
        if self._ending.is_set():
            return
        longest = min(self._longest_pause, _FIRST_PAUSE_S * 2**self._failures)
        pause = random.uniform(longest / 2, longest)  # noqa: S311 - so that not all come back at the same moment
        if isinstance(problem, NotNow):
            pause = max(pause, problem.seconds)
        text = str(problem) if isinstance(problem, EngramError) else repr(problem)
        with self._lock:
            self._failures = min(self._failures + 1, 30)
            self._problem = text
            self._since = self._clock() if self._since is None else self._since
        _logger.warning("sink_held_back", sink=self._sink.name, problem=text, pause_s=round(pause, 3))
        self._ending.wait(pause)

    def _succeeded(self) -> None:
        with self._lock:
            recovered, self._problem, self._since, self._failures = bool(self._problem), "", None, 0
        if recovered:
            _logger.warning("sink_goes_on", sink=self._sink.name)

    def _count(self, *, delivered: int = 0, behind: int | None = None) -> None:
        with self._lock:
            self._delivered += delivered
            self._behind = max(0, self._behind - delivered) if behind is None else behind


def _pieces(events: Sequence[OutEvent], size: int) -> Iterator[Sequence[OutEvent]]:
    for start in range(0, len(events), size):
        yield events[start : start + size]
