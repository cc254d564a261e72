"""Subscriptions: a query's answer now and after each change, as server-sent events, for any number of readers."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, NamedTuple

from engram.errors import Denied, EngramError, Misuse, Quarantined, Rejected, Unavailable
from engram.model.position import Position
from engram.model.principal import Principal
from engram.model.sealed import MARK
from engram.model.version import Version
from engram.serving.router import Router
from engram.shard.requests import Changed, Subscribe

# A shard that hears nothing for so long watches no more: a gateway that died costs it no longer than that.
_LEASE_MS = 15_000
_RENEW_S = 5.0
# While one reader waits for what it has missed, the shard is asked again so often, should it have moved.
_ASK_AGAIN_S = 1.0
# Readers that lost their connection come back within seconds, and find what they have missed.
_LINGER_S = 30.0
# How far a reader may be behind the others before it is dropped; and how much is kept of each query that is watched.
KEPT = 256
# And of what one reader has missed: that comes faster than it can be sent.
_KEPT_MISSED = 10_000
_MAX_READERS = 10_000
# Proxies take a connection away that is silent for a minute, some after half of that.
_KEEP_ALIVE_S = 15.0
_RETRY_MS = 1000
_STILL_HERE = b": still here\n\n"


class What(NamedTuple):
    """A query of an entity, as a shard is asked it. `principal` only where the answer depends on who asks."""

    partition: int
    key: str
    query: str
    version: Version
    body: bytes
    principal: Principal | None = None


class Change(NamedTuple):
    """What the query came to, and when; `number` counts those of a topic. `gap`: whether there were others between the
    one before and this is not known."""

    number: int
    position: Position
    kind: str
    body: bytes
    gap: bool = False

    @property
    def id(self) -> str:
        """Where to go on after it. With a checksum of the answer, so that the same is not told twice."""
        return f"{self.position}{MARK}{_checksum(self.body)}"

    def message(self) -> bytes:
        what = b"answer" if self.kind == "answer" else b"refused"
        gap = b',"gap":true' if self.gap else b""
        content = b'{"%s":%s,"position":"%s"%s}' % (what, self.body, str(self.position).encode(), gap)
        return b"id: %s\nevent: %s\ndata: %s\n\n" % (self.id.encode(), what, content)

    def check(self) -> None:
        """Raises what the query raised."""
        if self.kind == "answer":
            return
        content = json.loads(self.body)
        if self.kind == "rejected":
            raise Rejected(content["code"], content["text"])
        raise _REFUSED.get(self.kind, Quarantined)(content["text"])


_REFUSED: dict[str, type[EngramError]] = {"misuse": Misuse, "denied": Denied}


def _checksum(body: bytes) -> str:
    return f"{zlib.crc32(body):08x}"


class _TooSlow(Exception):
    """A reader is so far behind that what comes next for it is no longer kept."""

    def __init__(self, behind: int, kept: int | None) -> None:
        super().__init__(
            f"You are {behind} changes behind, and {kept} are kept: read faster, and come back for the rest."
        )
        self.behind = behind

    def message(self) -> bytes:
        content: dict[str, Any] = {"reason": str(self), "behind": self.behind}
        return b"event: dropped\ndata: %s\n\n" % json.dumps(content).encode()


class Topic:
    """One query of one entity, and its latest changes, which all readers take from here at their own pace.

    With `last`, the id of an event, it is of the changes after that.
    """

    def __init__(self, *, last: str = "", kept: int = KEPT) -> None:
        self._kept: deque[Change] = deque(maxlen=kept)
        self._rung = asyncio.Event()
        self._number = 0
        self._seen = last.partition(MARK)[2]  # the checksum of the answer before all that are kept
        self._missing: Position | None = None  # where it was seen last that something is missing
        self.at = position_of(last) if last else None  # the newest state that was heard of
        self.readers = 0
        self.left = asyncio.get_running_loop().time()  # when the last reader went

    @property
    def latest(self) -> Change | None:
        return self._kept[-1] if self._kept else None

    def hear(self, changed: Changed) -> bool:
        """What an owner said. What is not new is left out: of two owners, or of one who was asked again. So is what
        comes too early; True if that is to be asked for once more, from `at` on."""
        position = Position(changed.partition, changed.offset, changed.index)
        if self.at is not None and position <= self.at:
            return False
        if self.at is not None and changed.since is not None and changed.since > self.at.offset:
            again, self._missing = self._missing != self.at, self.at
            return again
        gap = self.at is not None and changed.since is None
        self.at = position
        if gap or not self._is_latest(changed):
            self._kept.append(Change(self._number, position, changed.kind, changed.body, gap))
            self._number += 1
        elif self._kept:
            return False
        self.ring()
        return False

    def _is_latest(self, changed: Changed) -> bool:
        latest = self.latest
        if latest is None:
            return self._seen == _checksum(changed.body)
        return (latest.kind, latest.body) == (changed.kind, changed.body)

    def ring(self) -> None:
        self._rung.set()
        self._rung = asyncio.Event()

    async def news(self, number: int, seconds: float) -> bool:
        """Waits until there is a change with this number; False if there is none in time."""
        try:
            async with asyncio.timeout(seconds):
                await self._rung.wait() if not self.has(number) else None
        except TimeoutError:
            pass
        return self.has(number)

    def has(self, number: int) -> bool:
        return self._number > number

    def change(self, number: int) -> Change:
        """The change with this number, which there was. Raises `_TooSlow` if it is no longer kept."""
        first = self._kept[0].number
        if number < first:
            raise _TooSlow(self._number - number, self._kept.maxlen)
        return self._kept[number - first]

    def covers(self, position: Position) -> bool:
        """Whether all changes after this position are kept."""
        return bool(self._kept) and self._kept[0].position <= position

    def after(self, position: Position | None) -> int:
        """The number of the first change after a position, which it covers; of the latest, if there is none."""
        if position is None:
            return self._number - 1
        return next((change.number for change in self._kept if change.position > position), self._number)


def position_of(event_id: str) -> Position:
    """The position in the id of an event. Raises `Misuse` if it has none."""
    return Position.parse(event_id.partition(MARK)[0])


class Subscriptions:
    """Gives changes of queries out. A shard is asked once for each query of an entity, however many read it.

    Lives on one event loop.
    """

    def __init__(self, router: Router) -> None:
        self._router = router
        self._topics: dict[What, tuple[int, Topic]] = {}
        self._renewing: asyncio.Task[None] | None = None
        self._readers = 0
        self._closed = False

    async def topic(self, what: What, *, seconds: float) -> Topic:
        """The topic of a query, with at least one change. Raises what the query raises, and `Unavailable` when its
        partition is not served in time."""
        if self._closed:
            raise Unavailable("The application is stopping: try again later.")
        if what not in self._topics:
            await self._router.find(what.partition, seconds)
        if what not in self._topics:
            self._topics[what] = self._router.next_id(), Topic()
            self._renew(what)
        if self._renewing is None:
            self._renewing = asyncio.create_task(self._keep())
        topic = self._topics[what][1]
        if topic.latest is None and not await topic.news(0, seconds):
            raise Unavailable(f"The shard of partition {what.partition} did not answer within {seconds:.1f} s.")
        assert topic.latest is not None
        topic.latest.check()
        return topic

    def stream(self, what: What, topic: Topic, last: str | None) -> AsyncIterator[bytes]:
        """The changes after the event with the id `last`, and all that come, as server-sent events. Those that the
        topic does not have any more, or never had, are asked for.

        A reader that is so slow that what comes next for it is no longer kept gets a last event, `dropped`, that says
        why.
        """
        if self._readers >= _MAX_READERS:
            raise Unavailable(f"There are {_MAX_READERS:,} subscribers already: try again later.")
        return self._events(what, topic, last)

    def close(self) -> None:
        """Ends all streams."""
        self._closed = True
        if self._renewing is not None:
            self._renewing.cancel()
        for _, topic in self._topics.values():
            topic.ring()

    async def _events(self, what: What, topic: Topic, last: str | None) -> AsyncIterator[bytes]:
        self._readers += 1
        topic.readers += 1
        try:
            yield b"retry: %d\n\n" % _RETRY_MS
            place = None if last is None else position_of(last)
            if last is not None and place is not None and not topic.covers(place):
                missed = Topic(last=last, kept=_KEPT_MISSED)
                async with aclosing(self._missed(what, topic, missed)) as events:
                    async for event in events:
                        yield event
                place = missed.at
            number = topic.after(place)
            while not self._closed:
                if not await topic.news(number, _KEEP_ALIVE_S):
                    if not self._closed:
                        yield _STILL_HERE
                    continue
                change = topic.change(number)
                number += 1
                if place is None or change.position > place:  # what it has seen elsewhere may be heard of here later
                    yield change.message()
        except _TooSlow as problem:
            yield problem.message()
        finally:
            self._readers -= 1
            topic.readers -= 1
            topic.left = asyncio.get_running_loop().time()

    async def _missed(self, what: What, topic: Topic, missed: Topic) -> AsyncGenerator[bytes]:
        """What one reader has missed, until it can go on with the topic that all share."""
        id_, number, said = self._router.next_id(), 0, asyncio.get_running_loop().time()
        self._watch(id_, missed, what)
        try:
            while not self._closed:
                if missed.has(number):
                    change = missed.change(number)
                    number, said = number + 1, asyncio.get_running_loop().time()
                    yield change.message()
                elif missed.at is not None and topic.covers(missed.at):
                    return
                elif not await missed.news(number, _ASK_AGAIN_S):
                    self._watch(id_, missed, what)
                    if asyncio.get_running_loop().time() - said > _KEEP_ALIVE_S:
                        said = asyncio.get_running_loop().time()
                        yield _STILL_HERE
        finally:
            self._router.unwatch(id_)

    async def _keep(self) -> None:
        """Renews what is read, and forgets what nobody comes back for."""
        while True:
            await asyncio.sleep(_RENEW_S)
            now = asyncio.get_running_loop().time()
            for what, (number, topic) in list(self._topics.items()):
                if topic.readers or now - topic.left < _LINGER_S:
                    self._renew(what)
                else:
                    del self._topics[what]
                    self._router.unwatch(number)

    def _renew(self, what: What) -> None:
        self._watch(*self._topics[what], what)

    def _watch(self, id_: int, topic: Topic, what: What) -> None:
        def request() -> Subscribe:
            return Subscribe(id_, *what, lease_ms=_LEASE_MS, after=None if topic.at is None else topic.at.offset)

        def heard(changed: Changed) -> None:
            if topic.hear(changed):
                self._router.watch(request, heard)

        self._router.watch(request, heard)
