"""From a gateway to the shards and back: queries to where a partition is served, replies to who waits for them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable
from typing import NamedTuple, TypeVar

import zmq
import zmq.asyncio

from engram.errors import Behind, Corrupt, EngramError, Misuse, Quarantined, Rejected, Unavailable
from engram.image.outcome import Outcome
from engram.model.position import Position
from engram.serving.registry import Registry
from engram.serving.wire import decode_response, encode_request
from engram.shard.requests import Answer, Ask, Await, Refusal, Replies, Report, Reported, Request, ShardStatus

T = TypeVar("T")

# Replies can overtake the append's own return, so the latest are kept until somebody comes for them.
_RECENT_RECORDS = 10_000
# A reply that was sent before the line was up is lost; after this long without a word it is asked for.
_ASK_AGAIN_S = 1.0
# A shard says itself when a query's time is up, and knows why. It may be busy at that moment: a record of commands, a
# slice of a snapshot. Only a shard that is silent for this much longer is taken to be away.
_ANSWER_GRACE_S = 2.0


class _Waiting(NamedTuple):
    """A command whose outcome is awaited."""

    session: str
    sequence: int
    future: asyncio.Future[Outcome]


class Router:
    """Finds the shard of a partition, and asks again where it has moved to. Lives on one event loop."""

    def __init__(self, registry: Registry, writer: str) -> None:
        self._registry = registry
        self._identity = writer.encode()
        self._context = zmq.asyncio.Context()
        self._links: dict[str, tuple[zmq.asyncio.Socket, asyncio.Task[None]]] = {}
        self._ids = itertools.count(1)
        self._asked: dict[int, tuple[asyncio.Future[Answer | Reported | Refusal], int, Request]] = {}
        self._awaited: dict[tuple[int, int], dict[int, _Waiting]] = {}  # by record, then by index
        self._recent: dict[tuple[int, int], list[Outcome]] = {}
        self._sending: set[asyncio.Task[None]] = set()
        registry.on_move(self._moved)

    async def ask(
        self,
        partition: int,
        key: str,
        query: str,
        version: int,
        body: bytes,
        *,
        at_least: Position | None,
        seconds: float,
    ) -> Answer:
        """The answer to a query, wherever its partition is served. Raises what the shard refused with."""
        bound = None if at_least is None else (at_least.offset, at_least.index)
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            left = deadline - asyncio.get_running_loop().time()
            address = await self._find(partition, left)
            ask = Ask(next(self._ids), partition, key, query, version, body, bound, int(max(left, 0) * 1000))
            response = await self._request(address, partition, ask, left + _ANSWER_GRACE_S)
            if isinstance(response, Answer):
                return response
            assert isinstance(response, Refusal)
            if response.kind not in ("moved", "recovering"):
                raise _refused(response)
            # It is between two owners: a new announcement will tell.
            await self._registry.wait_until(lambda: False, 0.05)

    async def reply(self, position: Position, session: str, sequence: int, *, seconds: float) -> Outcome:
        """The outcome of a command that this writer has appended."""
        record = position.partition, position.offset
        recent = self._recent.get(record)
        if recent is not None:
            return recent[position.index]
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        waiting = self._awaited.setdefault(record, {})
        waiting[position.index] = _Waiting(session, sequence, future)
        try:
            while not future.done() and seconds > 0:
                await asyncio.wait([future], timeout=min(seconds, _ASK_AGAIN_S))
                seconds -= _ASK_AGAIN_S
                location = self._registry.lookup(position.partition)
                if not future.done() and location is not None:
                    self._post(location.address, [Await(*record, [(position.index, session, sequence)])])
            if future.done():
                return future.result()
        finally:
            del waiting[position.index]
            if not waiting:
                self._awaited.pop(record, None)
        problem = self._registry.problem(position.partition)
        raise Unavailable(
            f"The command is logged at {position} and will be handled, but its reply is not known yet"
            + (f": partition {position.partition} is stopped. {problem}" if problem else ".")
        )

    async def report(self, *, digests: bool, seconds: float) -> list[ShardStatus]:
        """The status of every shard, fresh from itself."""
        found = []
        for shard in self._registry.shards():
            report = Report(next(self._ids), digests)
            response = await self._request(shard.address, -1, report, seconds)
            assert isinstance(response, Reported)
            found.append(response.status)
        return found

    def close(self) -> None:
        for _, task in self._links.values():
            task.cancel()
        self._context.destroy(linger=0)

    async def _find(self, partition: int, seconds: float) -> str:
        await self._registry.wait_until(
            lambda: self._registry.lookup(partition) is not None or bool(self._registry.problem(partition)),
            seconds,
        )
        problem = self._registry.problem(partition)
        if problem:
            raise Corrupt(f"Partition {partition} is stopped. {problem}")
        location = self._registry.lookup(partition)
        if location is None:
            raise Unavailable(f"No shard serves partition {partition} yet; it is starting or recovering.")
        return location.address

    async def _request(
        self, address: str, partition: int, request: Ask | Report, seconds: float
    ) -> Answer | Reported | Refusal:
        future: asyncio.Future[Answer | Reported | Refusal] = asyncio.get_running_loop().create_future()
        self._asked[request.id] = future, partition, request
        try:
            self._post(address, [request])
            return await _within(future, seconds)
        except TimeoutError:
            raise Unavailable(f"The shard of partition {partition} did not answer within {seconds:.1f} s.") from None
        finally:
            del self._asked[request.id]

    async def _send(self, address: str, request: Request) -> None:
        await self._link(address).send_multipart(encode_request(request))

    def _link(self, address: str) -> zmq.asyncio.Socket:
        if address not in self._links:
            socket = self._context.socket(zmq.DEALER)
            socket.setsockopt(zmq.IDENTITY, self._identity)
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(address)
            self._links[address] = socket, asyncio.create_task(self._receive(socket))
        return self._links[address][0]

    async def _receive(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            response = decode_response(await socket.recv_multipart())
            if isinstance(response, Replies):
                self._replied(response)
            else:
                asked = self._asked.get(response.id)
                if asked is not None and not asked[0].done():
                    asked[0].set_result(response)

    def _replied(self, replies: Replies) -> None:
        record = replies.partition, replies.offset
        if replies.indices is None:
            self._recent[record] = replies.outcomes
            if len(self._recent) > _RECENT_RECORDS:
                del self._recent[next(iter(self._recent))]
        waiting = self._awaited.get(record, {})
        indices = range(len(replies.outcomes)) if replies.indices is None else replies.indices
        for index, outcome in zip(indices, replies.outcomes, strict=True):
            if index in waiting and not waiting[index].future.done():
                waiting[index].future.set_result(outcome)

    def _moved(self, partition: int) -> None:
        """A partition has a new owner: everything that is open with the old one is asked again."""
        location = self._registry.lookup(partition)
        assert location is not None
        self._link(location.address)
        self._drop_unused_links()
        requests: list[Request] = [request for _, of, request in self._asked.values() if of == partition]
        for (of, offset), waiting in self._awaited.items():
            if of == partition:
                commands = [(index, w.session, w.sequence) for index, w in waiting.items()]
                requests.append(Await(partition, offset, commands))
        self._post(location.address, requests)

    def _drop_unused_links(self) -> None:
        used = {shard.address for shard in self._registry.shards()} | set(self._registry.addresses())
        for address in self._links.keys() - used:
            socket, task = self._links.pop(address)
            task.cancel()
            socket.close()

    def _post(self, address: str, requests: list[Request]) -> None:
        """Sends without waiting. A link that is dropped meanwhile takes what was not sent with it."""
        task = asyncio.create_task(self._send_all(address, requests))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send_all(self, address: str, requests: list[Request]) -> None:
        for request in requests:
            await self._send(address, request)


async def _within(awaited: Awaitable[T], seconds: float) -> T:
    async with asyncio.timeout(max(seconds, 0)):
        return await awaited


def _refused(refusal: Refusal) -> EngramError:
    match refusal.kind:
        case "rejected":
            return Rejected(refusal.code, refusal.text)
        case "behind":
            return Behind(refusal.text)
        case "stopped":
            return Corrupt(refusal.text)
        case "misuse":
            return Misuse(refusal.text)
        case _:
            return Quarantined(refusal.text)
