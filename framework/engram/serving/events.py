"""Events over HTTP: a page at a time, waited for if need be, or as a stream of server-sent events."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from difflib import get_close_matches
from typing import NamedTuple, TypeVar

import structlog

from engram.errors import EngramError, Misuse, Unavailable
from engram.log.base import Log
from engram.log.cursor import Cursor, cursor_of
from engram.log.stream import EventReader, NewEvents, described
from engram.model.app import App
from engram.model.effects import OutEvent

PAGE_EVENTS = 100
MAX_PAGE_EVENTS = 1000
# What is looked through for events of some names before the page is given out as it is.
_LOOKED_THROUGH = 10_000
# Each waits on the event loop and is read for by a few threads; beyond this the app is better read by a sink.
_MAX_STREAMS = 200
_READERS = 4
# Proxies take a connection away that is silent for a minute, some after half of that.
_KEEP_ALIVE_S = 15.0
_RETRY_MS = 1000

T = TypeVar("T")

_logger = structlog.get_logger()


class Page(NamedTuple):
    """Events, each with the cursor after it, and the cursor after all that was looked through.

    `more`: there may be more already, so that the next page need not be waited for.
    """

    events: list[tuple[OutEvent, Cursor]]
    cursor: Cursor
    more: bool

    def json(self) -> bytes:
        events = [{**described(event), "cursor": str(cursor)} for event, cursor in self.events]
        return json.dumps(
            {"events": events, "cursor": str(self.cursor), "more": self.more}, ensure_ascii=False
        ).encode()


class EventsDoor:
    """Gives an app's events out. Lives on one event loop, reads the log on threads of its own."""

    def __init__(self, app: App, log: Log) -> None:
        self._app = app
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(_READERS, thread_name_prefix="engram-events")
        self._bell = _Bell(log, self._loop)
        self._streams = 0
        self._closed = False

    def check_names(self, names: Sequence[str]) -> frozenset[str]:
        """Raises `Misuse` for a name that no event of the app has."""
        for name in names:
            if name not in self._app.events:
                near = get_close_matches(name, self._app.events, n=3, cutoff=0.5) or sorted(self._app.events)
                raise Misuse(f"App {self._app.name} has no event {name!r}. It has: {', '.join(near) or 'none'}.")
        return frozenset(names)

    async def page(self, after: str, *, limit: int, names: Sequence[str] = (), seconds: float = 0.0) -> Page:
        """The next events of these names, or of all. While there are none, waits for one, no longer than `seconds`."""
        wanted = self.check_names(names)
        reader = await self._reader(after)
        deadline = self._loop.time() + seconds
        while True:
            ticket = self._bell.ticket
            page = await self._on_thread(lambda: _read(reader, limit, wanted))
            if page.events or page.more:
                return page
            left = deadline - self._loop.time()
            if left <= 0:
                return page
            await self._bell.wait(ticket, left)
            if self._closed:
                return page

    async def stream(self, after: str, *, names: Sequence[str] = ()) -> AsyncGenerator[bytes]:
        """Server-sent events without end, each with the cursor after it as its id. Ends when the door is closed.

        What can be refused is refused before this returns.
        """
        wanted = self.check_names(names)
        if self._streams >= _MAX_STREAMS:
            raise Unavailable(f"There are {self._streams} streams of events already: try again later, or use a sink.")
        return self._sent(await self._reader(after), wanted)

    async def _sent(self, reader: EventReader, wanted: frozenset[str]) -> AsyncGenerator[bytes]:
        self._streams += 1
        cursor = told = reader.cursor
        spoke = self._loop.time()
        try:
            yield b"retry: %d\n\n" % _RETRY_MS
            while not self._closed:
                ticket = self._bell.ticket
                page = await self._on_thread(lambda: _read(reader, PAGE_EVENTS, wanted))
                for event, told in page.events:
                    yield _message(event, told)
                cursor = page.cursor
                if page.events:
                    spoke = self._loop.time()
                elif self._loop.time() >= spoke + _KEEP_ALIVE_S:
                    # An id alone moves the reader on over events that it does not want.
                    yield b": still here\n\n" if cursor == told else b"id: %s\n\n" % str(cursor).encode()
                    told = cursor
                    spoke = self._loop.time()
                if not page.more:
                    await self._bell.wait(ticket, spoke + _KEEP_ALIVE_S - self._loop.time())
        except EngramError as problem:  # the headers are long gone: the reader comes back and is told then
            if not self._closed:
                _logger.warning("events_stream_ended", problem=str(problem))
        finally:
            self._streams -= 1

    def close(self) -> None:
        """Ends all streams and everything that waits."""
        self._closed = True
        self._bell.close()
        self._threads.shutdown(wait=False)

    async def _reader(self, after: str) -> EventReader:
        if self._closed:
            raise Unavailable("The application is stopping: try again later.")
        return await self._on_thread(lambda: EventReader(self._log, cursor_of(after, self._log)))

    async def _on_thread(self, work: Callable[[], T]) -> T:
        try:
            return await self._loop.run_in_executor(self._threads, work)
        except RuntimeError as problem:
            if not self._closed:
                raise
            raise Unavailable("The application is stopping: try again later.") from problem


def _read(reader: EventReader, limit: int, names: frozenset[str]) -> Page:
    found: list[tuple[OutEvent, Cursor]] = []
    looked = 0
    while looked < _LOOKED_THROUGH:
        cursor = reader.cursor
        events = reader.read(limit - len(found))
        looked += len(events)
        for event in events:
            cursor = cursor.past(event)
            if not names or event.name in names:
                found.append((event, cursor))
        if not events or len(found) == limit:
            return Page(found, reader.cursor, bool(events))
    return Page(found, reader.cursor, True)


def _message(event: OutEvent, cursor: Cursor) -> bytes:
    data = json.dumps(described(event), ensure_ascii=False)  # one line: JSON escapes line feeds
    return f"id: {cursor}\nevent: {event.name}\ndata: {data}\n\n".encode()


class _Bell:
    """Wakes everybody on the event loop who waits for new events: one watch and one thread for all.

    The number of the last ring is a ticket: take one, look at the log, then wait with it. Nothing is missed.
    """

    def __init__(self, log: Log, loop: asyncio.AbstractEventLoop) -> None:
        self._log = log
        self._loop = loop
        self._rung = asyncio.Event()
        self._waiting = 0
        self._needed = threading.Event()
        self._closed = False
        self._news: NewEvents | None = None
        self._thread: threading.Thread | None = None
        self.ticket = 0

    async def wait(self, ticket: int, seconds: float) -> None:
        """Returns when there may be something new, or after `seconds`."""
        if self._closed:
            return
        if self._news is None:  # whoever waits first looks again: what came before the watch was not told
            self._news = NewEvents(self._log)
            self._thread = threading.Thread(target=self._listen, args=(self._news,), name="engram-bell", daemon=True)
            self._thread.start()
            return
        self._waiting += 1
        self._needed.set()
        try:
            async with asyncio.timeout(seconds):
                while self.ticket == ticket and not self._closed:
                    await self._rung.wait()
        except TimeoutError:
            return
        finally:
            self._waiting -= 1
            if not self._waiting and not self._closed:
                self._needed.clear()

    def close(self) -> None:
        self._closed = True
        self._rung.set()
        self._needed.set()
        if self._news is not None and self._thread is not None:
            self._news.wake()
            self._thread.join()
            self._news.close()
            self._news = None

    def _listen(self, news: NewEvents) -> None:
        """On the thread, which sleeps while nobody waits."""
        while not self._closed:
            self._needed.wait()
            news.wait()
            news.clear()
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._ring)

    def _ring(self) -> None:
        self.ticket += 1
        self._rung.set()
        self._rung = asyncio.Event()
        if self._closed:
            self._rung.set()
