"""From a gateway to the shards and back: queries to where a partition is served, replies to who waits for them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import zmq.asyncio

from engram.errors import Corrupt, Unavailable
from engram.image.outcome import Outcome
from engram.model.position import Position
from engram.model.principal import Principal
from engram.model.version import Version
from engram.serving.awaited import AwaitedReplies, Logged
from engram.serving.links import DirectLink, Link, ZmqLink
from engram.serving.refused import PASSING, refused
from engram.serving.registry import Doors, Registry
from engram.shard.requests import (
    Answer,
    Arrived,
    Ask,
    AskEffects,
    AskQuarantine,
    Await,
    Changed,
    EffectsReport,
    Look,
    QuarantineReport,
    Question,
    Refusal,
    Replies,
    Report,
    Reported,
    Request,
    Response,
    ShardStatus,
    SnapshotTaken,
    Subscription,
    TakeSnapshot,
)

T = TypeVar("T")

# A shard says itself when a query's time is up, and knows why. It may be busy at that moment: a record of commands, a
# slice of a snapshot. Only a shard that is silent for this much longer is taken to be away.
_ANSWER_GRACE_S = 2.0


class _Asked(NamedTuple):
    """What is asked of a shard, and nobody has answered yet."""

    future: asyncio.Future[Answer | Reported | Refusal]
    doors: Doors
    partition: int
    request: Request


class Router:
    """Finds the shard of a partition, and asks again where it has moved to. Lives on one event loop."""

    def __init__(self, registry: Registry, writer: str) -> None:
        self._registry = registry
        self._identity = writer.encode()
        self._context = zmq.asyncio.Context()
        self._links: dict[Doors, Link] = {}
        self._ids = itertools.count(1)
        self._asked: dict[int, _Asked] = {}
        self._watched: dict[int, tuple[Callable[[], Subscription], Callable[[Changed], None]]] = {}
        self._awaited = AwaitedReplies(self._ask_for_replies)
        registry.on_move(self._moved)

    async def ask(
        self,
        partition: int,
        key: str,
        query: str,
        version: Version,
        body: bytes,
        *,
        at_least: Position | None,
        seconds: float,
        principal: Principal | None = None,
    ) -> Answer:
        """The answer to a query, wherever its partition is served. Raises what the shard refused with."""
        bound = None if at_least is None else (at_least.offset, at_least.index)

        def asked(id_: int, timeout_ms: int) -> Ask:
            return Ask(id_, partition, key, query, version, body, bound, timeout_ms, principal)

        return await self._ask(partition, asked, seconds)

    async def ask_quarantine(
        self,
        partition: int,
        *,
        place: tuple[int, int] | None = None,
        limit: int = 1,
        at_least: Position | None = None,
        seconds: float,
    ) -> QuarantineReport:
        """Failed commands of a partition: the one at `place`, or the newest."""
        bound = None if at_least is None else (at_least.offset, at_least.index)

        def asked(id_: int, timeout_ms: int) -> AskQuarantine:
            return AskQuarantine(id_, partition, place, limit, bound, timeout_ms)

        return QuarantineReport.model_validate_json((await self._ask(partition, asked, seconds)).body)

    async def look(
        self,
        partition: int,
        model: str,
        place: str,
        *,
        after: tuple[float, str, str] | None,
        limit: int,
        at_least: Position | None,
        seconds: float,
    ) -> Answer:
        """What a partition has in a read model: see `engram.shard.look`."""
        bound = None if at_least is None else (at_least.offset, at_least.index)

        def asked(id_: int, timeout_ms: int) -> Look:
            return Look(id_, partition, model, place, after, limit, bound, timeout_ms)

        return await self._ask(partition, asked, seconds)

    async def take_snapshot(self, partition: int, savepoint: str, *, seconds: float) -> SnapshotTaken:
        """Has a snapshot of the partition taken, and returns when it is published."""

        def asked(id_: int, timeout_ms: int) -> TakeSnapshot:
            return TakeSnapshot(id_, partition, savepoint, timeout_ms)

        return SnapshotTaken.model_validate_json((await self._ask(partition, asked, seconds)).body)

    async def ask_effects(
        self,
        partition: int,
        command: tuple[int, int] | None,
        roots: list[str],
        arrived: list[Arrived],
        *,
        seconds: float,
    ) -> tuple[Answer, EffectsReport]:
        """What a command, or messages that have arrived there, have sent; when they are handled."""

        def asked(id_: int, timeout_ms: int) -> AskEffects:
            return AskEffects(id_, partition, command, roots, arrived, timeout_ms)

        answer = await self._ask(partition, asked, seconds)
        return answer, EffectsReport.model_validate_json(answer.body)

    async def _ask(
        self, partition: int, asked: Callable[[int, int], Question | TakeSnapshot], seconds: float
    ) -> Answer:
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            left = deadline - asyncio.get_running_loop().time()
            doors = await self.find(partition, left)
            ask = asked(next(self._ids), int(max(left, 0) * 1000))
            response = await self._request(doors, partition, ask, left + _ANSWER_GRACE_S)
            if isinstance(response, Answer):
                return response
            assert isinstance(response, Refusal)
            if response.kind not in PASSING:
                raise refused(response, ask)
            # It is between two owners: a new announcement will tell.
            await self._registry.wait_until(lambda: False, 0.05)

    async def reply(self, command: Logged, *, seconds: float) -> Outcome:
        """The outcome of a command that this writer has appended."""
        (outcome,) = await self.replies([command], seconds=seconds)
        if isinstance(outcome, Unavailable):
            raise outcome
        return outcome

    async def replies(self, commands: Sequence[Logged], *, seconds: float) -> list[Outcome | Unavailable]:
        """The outcome of each command; of those whose outcome is not known in time, why."""
        outcomes = await self._awaited.of(commands, seconds=seconds)
        return [
            self._not_known(command.position) if outcome is None else outcome
            for command, outcome in zip(commands, outcomes, strict=True)
        ]

    def _not_known(self, position: Position) -> Unavailable:
        problem = self._registry.problem(position.partition)
        stuck = self._registry.stuck(position.partition)
        why = f": partition {position.partition} is stopped. {problem}" if problem else f". {stuck}".rstrip()
        return Unavailable(
            f"The command is logged at {position} and will be handled, but its reply is not known yet{why}"
        )

    def _ask_for_replies(self, asked: Await) -> None:
        location = self._registry.lookup(asked.partition)
        if location is not None:
            self._post(location.doors, [asked])

    def watch(self, request: Callable[[], Subscription], heard: Callable[[Changed], None]) -> None:
        """Has a query watched, wherever its partition is or will be served, and `heard` called with all that is said.
        Call it again before the lease ends, until `unwatch`. `request` is called for each owner, to say what was heard
        until then."""
        subscribe = request()
        self._watched[subscribe.id] = request, heard
        location = self._registry.lookup(subscribe.partition)
        if location is not None:
            self._post(location.doors, [subscribe])

    def unwatch(self, id_: int) -> None:
        self._watched.pop(id_, None)

    def next_id(self) -> int:
        return next(self._ids)

    async def report(self, *, digests: bool, seconds: float) -> list[ShardStatus]:
        """The status of every shard, fresh from itself."""
        found = []
        for shard in self._registry.shards():
            report = Report(next(self._ids), digests)
            response = await self._request(Doors(shard.address, shard.direct), -1, report, seconds)
            assert isinstance(response, Reported)
            found.append(response.status)
        return found

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        self._context.destroy(linger=0)

    async def find(self, partition: int, seconds: float) -> Doors:
        """Where the partition is served, once it is. Raises `Corrupt` for one that is stopped."""
        location = self._registry.lookup(partition)
        if location is not None and not self._registry.problem(partition):
            return location.doors  # almost always, and waiting for nothing costs a tenth of a query
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
        return location.doors

    async def _request(
        self, doors: Doors, partition: int, request: Question | Report | TakeSnapshot, seconds: float
    ) -> Answer | Reported | Refusal:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer | Reported | Refusal] = loop.create_future()
        self._asked[request.id] = _Asked(future, doors, partition, request)
        given_up = loop.call_later(max(seconds, 0), _give_up, future)
        try:
            self._post(doors, [request])
            return await future
        except TimeoutError:
            silence = f"The shard of partition {partition} did not answer within {seconds:.1f} s."
            raise Unavailable(f"{silence} {self._registry.stuck(partition)}".rstrip()) from None
        finally:
            given_up.cancel()
            del self._asked[request.id]

    def _link(self, doors: Doors) -> Link:
        link = self._links.get(doors)
        if link is None:
            link = self._links[doors] = self._new_link(doors)
        return link

    def _new_link(self, doors: Doors) -> Link:
        keys = self._registry.keys
        if doors.direct and keys is None:
            still_open = partial(self._open_at, doors)
            return DirectLink(doors.direct, self._identity, heard=self._hear, still_open=still_open)
        return ZmqLink(self._context, doors.address, self._identity, keys, heard=self._hear)

    def _hear(self, response: Response) -> None:
        if isinstance(response, Replies):
            self._awaited.replied(response)
        elif isinstance(response, Changed):
            if response.id in self._watched:
                self._watched[response.id][1](response)
        else:
            asked = self._asked.get(response.id)
            if asked is not None and not asked.future.done():
                asked.future.set_result(response)

    def _moved(self, partition: int) -> None:
        """A partition has a new owner: everything that is open with the old one is asked again."""
        location = self._registry.lookup(partition)
        assert location is not None
        self._link(location.doors)
        self._drop_unused_links()
        requests = [asked.request for asked in self._asked.values() if asked.partition == partition]
        self._post(location.doors, requests + self._open_in([partition]))

    def _open_at(self, doors: Doors) -> list[Request]:
        """All that the shard there has not answered, or goes on answering."""
        partitions = self._registry.partitions_at(doors)
        requests = [
            asked.request for asked in self._asked.values() if asked.doors == doors or asked.partition in partitions
        ]
        return requests + self._open_in(partitions)

    def _open_in(self, partitions: Sequence[int]) -> list[Request]:
        """What is watched in these partitions, and the replies from there that somebody waits for."""
        watched = [request() for request, _ in self._watched.values()]
        found: list[Request] = [subscribe for subscribe in watched if subscribe.partition in partitions]
        for partition in partitions:
            found += self._awaited.open_in(partition)
        return found

    def _drop_unused_links(self) -> None:
        for doors in self._links.keys() - self._registry.doors():
            self._links.pop(doors).close()

    def _post(self, doors: Doors, requests: Iterable[Request]) -> None:
        self._link(doors).post(requests)


def _give_up(future: asyncio.Future[T]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())
