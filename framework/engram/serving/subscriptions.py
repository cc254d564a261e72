"""Subscriptions: an answer now and after each change, as server-sent events, for any number of readers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import NamedTuple

from engram.errors import Unavailable
from engram.model.principal import Principal
from engram.model.version import Version
from engram.serving.metrics import Metrics
from engram.serving.router import Router
from engram.serving.row_topic import Place
from engram.serving.topic import AnswerTopic, TooSlow, Topic, dropped
from engram.shard.requests import Changed, Subscribe, Subscription

# A shard that hears nothing for so long watches no more: a gateway that died costs it no longer than that.
_LEASE_MS = 15_000
_RENEW_S = 5.0
# While one reader waits for what it has missed, the shard is asked again so often, should it have moved.
_ASK_AGAIN_S = 1.0
# Readers that lost their connection come back within seconds, and find what they have missed.
_LINGER_S = 30.0
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

    @property
    def partitions(self) -> Sequence[int]:
        return (self.partition,)

    def topic(self) -> AnswerTopic:
        return AnswerTopic()

    def subscribe(self, id_: int, _partition: int, after: int | None, *, base: bool, lease_ms: int) -> Subscribe:
        assert not base
        return Subscribe(id_, *self, lease_ms=lease_ms, after=after)


class Watching(NamedTuple):
    """A topic, and the numbers under which each partition is asked for it."""

    ids: Sequence[int]
    topic: Topic


class Subscriptions:
    """Gives changes out. A shard is asked once for each query of an entity, and each place of a read model, however
    many read it.

    Lives on one event loop.
    """

    def __init__(self, router: Router, metrics: Metrics) -> None:
        self._router = router
        self._metrics = metrics
        self._topics: dict[What | Place, Watching] = {}
        self._renewing: asyncio.Task[None] | None = None
        self._readers = 0
        self._closed = False

    async def topic(self, what: What | Place, *, seconds: float) -> Topic:
        """The topic of something, with at least one change. Raises what the query raises, and `Unavailable` when a
        partition is not served in time."""
        if self._closed:
            raise Unavailable("The application is stopping: try again later.")
        if what not in self._topics:
            for partition in what.partitions:
                await self._router.find(partition, seconds)
        if what not in self._topics:
            self._topics[what] = Watching([self._router.next_id() for _ in what.partitions], what.topic())
            self._metrics.watched.set(len(self._topics))
            self._renew(what)
        if self._renewing is None:
            self._renewing = asyncio.create_task(self._keep())
        topic = self._topics[what].topic
        if topic.latest is None and not await topic.news(0, seconds):
            where = " or ".join(str(p) for p in what.partitions if topic.heard(p) is None)
            raise Unavailable(f"The shard of partition {where} did not answer within {seconds:.1f} s.")
        assert topic.latest is not None
        topic.latest.check()
        return topic

    def stream(self, what: What | Place, topic: Topic, last: str | None) -> AsyncGenerator[bytes]:
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
        for watching in self._topics.values():
            watching.topic.ring()

    async def _events(self, what: What | Place, topic: Topic, last: str | None) -> AsyncGenerator[bytes]:
        self._count(topic, 1)
        try:
            yield b"retry: %d\n\n" % _RETRY_MS
            number = topic.number - 1 if last is None else topic.resume(last)
            if last is not None and number is None:
                joined: list[int] = []
                async with aclosing(self._missed(what, topic, last, joined)) as events:
                    async for event in events:
                        yield event
                number = next(iter(joined), None)
            while number is not None and not self._closed:
                if not await topic.news(number, _KEEP_ALIVE_S):
                    if not self._closed:
                        yield _STILL_HERE
                    continue
                change = topic.change(number)
                number += 1
                self._metrics.told.inc()
                yield change.message()
        except TooSlow as problem:
            self._metrics.dropped("slow")
            yield dropped(str(problem), behind=problem.behind)
        finally:
            self._count(topic, -1)
            topic.left = asyncio.get_running_loop().time()

    async def _missed(self, what: What | Place, topic: Topic, last: str, joined: list[int]) -> AsyncGenerator[bytes]:
        """What one reader has missed, until it can go on with the topic that all share, from the number on that is put
        into `joined`."""
        missed = topic.missed(last)
        missed.waking.add(missed)
        topic.waking.add(missed)
        clock = asyncio.get_running_loop().time
        ids, number, said, asked = [self._router.next_id() for _ in what.partitions], 0, clock(), clock()
        self._watch(ids, missed, what)
        try:
            while not self._closed:
                if missed.has(number):
                    change = missed.change(number)
                    number, said = number + 1, clock()
                    self._metrics.told.inc()
                    yield change.message()
                elif (place := topic.join(missed)) is not None:
                    joined.append(place)
                    return
                elif not await missed.news(number, _ASK_AGAIN_S) and clock() - asked >= _ASK_AGAIN_S:
                    asked = clock()
                    self._watch(ids, missed, what)
                    self._renew(what)  # it may be the one that is behind
                    if clock() - said > _KEEP_ALIVE_S:
                        said = clock()
                        yield _STILL_HERE
        finally:
            topic.waking.discard(missed)
            for id_ in ids:
                self._router.unwatch(id_)

    def _count(self, topic: Topic, more: int) -> None:
        self._readers += more
        topic.readers += more
        self._metrics.subscribers.set(self._readers)

    async def _keep(self) -> None:
        """Renews what is read, and forgets what nobody comes back for."""
        while True:
            await asyncio.sleep(_RENEW_S)
            now = asyncio.get_running_loop().time()
            for what, (ids, topic) in list(self._topics.items()):
                if topic.readers or now - topic.left < _LINGER_S:
                    self._renew(what)
                else:
                    del self._topics[what]
                    self._metrics.watched.set(len(self._topics))
                    for id_ in ids:
                        self._router.unwatch(id_)

    def _renew(self, what: What | Place) -> None:
        watching = self._topics.get(what)
        if watching is not None:
            self._watch(*watching, what)

    def _watch(self, ids: Sequence[int], topic: Topic, what: What | Place) -> None:
        for id_, partition in zip(ids, what.partitions, strict=True):
            self._watch_one(id_, partition, topic, what)

    def _watch_one(self, id_: int, partition: int, topic: Topic, what: What | Place) -> None:
        def request() -> Subscription:
            base = topic.lacks_base(partition)
            return what.subscribe(id_, partition, topic.heard(partition), base=base, lease_ms=_LEASE_MS)

        def heard(changed: Changed) -> None:
            if topic.hear(changed):
                self._router.watch(request, heard)
            for waiting in topic.waking:
                waiting.ring()

        self._router.watch(request, heard)
