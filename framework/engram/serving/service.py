"""The application's door, without HTTP: commands into the log, replies and answers out of live state."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable
from typing import Any

from engram.clock import Clock
from engram.codec.codec import Codec
from engram.errors import Ahead, EngramError, Gap, Misuse
from engram.log.base import Log
from engram.log.partitioner import partition_of
from engram.model.app import App
from engram.model.command import Command
from engram.model.position import Position
from engram.model.principal import Principal
from engram.model.query import Query
from engram.model.read_model import ReadModel
from engram.model.token import Token
from engram.serving.commands import CommandId, CommandsDoor, Given, Handled
from engram.serving.effects import settle
from engram.serving.events import EventsDoor
from engram.serving.metrics import Metrics
from engram.serving.quarantine import QuarantineDoor
from engram.serving.read_models import ReadModelsDoor, Wanted
from engram.serving.registry import Registry
from engram.serving.router import Router
from engram.serving.row_topic import Place
from engram.serving.snapshots import Ending, SnapshotsDoor
from engram.serving.spans import GatewaySpans
from engram.serving.subscriptions import Subscriptions, What
from engram.serving.topic import position_of
from engram.shard.requests import Answer, ShardStatus
from engram.snapshots.base import SnapshotStore
from engram.tracing import tracer


class Service:
    """Sends commands and asks queries for one app. Lives on one event loop."""

    def __init__(
        self,
        app: App,
        log: Log,
        registry: Registry,
        *,
        clock: Clock,
        events: Log | None = None,
        sinks: Callable[[], list[dict[str, Any]]] = list,
        snapshots: SnapshotStore | None = None,
    ) -> None:
        """`events` is the log once more, for reading events beside the appends; `sinks` tells how these are;
        `snapshots` is where the shards keep theirs."""
        self.app = app
        self.log = log
        self.registry = registry
        registry.tells_of(app.name, log.partitions)
        self.codec = Codec(app)
        self.metrics = Metrics(app.name, registry, clock=clock)
        self.spans = GatewaySpans(tracer(), log)
        self._writer = f"g:{secrets.token_hex(6)}"
        self._router = Router(registry, self._writer)
        self._ends = [0] * log.partitions  # as far as is known: the log may have come further
        self.commands = CommandsDoor(
            self.codec,
            log,
            self._router,
            writer=self._writer,
            clock=clock,
            metrics=self.metrics,
            spans=self.spans,
            on_logged=self._logged,
        )
        self.read_models = ReadModelsDoor(log, self._router, self.check_not_ahead, self.metrics.looked, self.spans)
        self.events = EventsDoor(app, events or log)
        self.sinks = sinks
        self.subscriptions = Subscriptions(self._router, self.metrics)
        self.ending = Ending()
        self.snapshots = SnapshotsDoor(
            log.partitions, registry, self._router, store=snapshots, ending=self.ending, version=app.version
        )
        self.quarantine = QuarantineDoor(
            self.codec,
            log,
            registry,
            self._router,
            writer=self._writer,
            clock=clock,
            borrow=self.commands.borrow,
            give_back=self.commands.give_back,
        )

    async def submit(
        self,
        key: str,
        command: Command[Any, Any],
        *,
        command_id: CommandId | None = None,
        idempotency_key: str | None = None,
    ) -> Position:
        """Returns once the command is durable, with its position."""
        (position,) = await self.commands.submit([Given(key, command, command_id, idempotency_key)])
        if isinstance(position, EngramError):
            raise position
        return position

    async def send(
        self,
        key: str,
        command: Command[Any, Any],
        *,
        command_id: CommandId | None = None,
        idempotency_key: str | None = None,
        seconds: float,
    ) -> Handled:
        """Returns once the command is handled, with its position and outcome."""
        given = Given(key, command, command_id, idempotency_key)
        (handled,) = await self.commands.send([given], seconds=seconds)
        if isinstance(handled, EngramError):
            raise handled
        return handled

    async def settle(self, position: Position, *, seconds: float) -> list[Position]:
        """Returns once everything that the command there has led to is handled: see `engram.serving.effects.settle`."""
        return await settle(self._router, position, seconds=seconds)

    async def ask(
        self,
        key: str,
        query: Query[Any, Any],
        *,
        at_least: Token,
        seconds: float,
        principal: Principal | None = None,
    ) -> Answer:
        """The answer of live state. `at_least` may name any partitions; only the key's own counts. Raises `Ahead` when
        the log does not have what it names, and `Behind` when the state does not come that far in time; `Denied` when
        the query says, by the state of the entity, that it is not for `principal`."""
        key = self.checked_key(key, query)
        partition = partition_of(key, self.log.partitions)
        offset = at_least.offset(partition)
        bound = None if offset is None else Position(partition, offset, 0)
        if bound is not None:
            await self.check_not_ahead(bound)
        name, version = query.__engram__.name or "", self.codec.version_of(type(query))
        body = self.codec.encode_body(query)
        told = _told(query, principal)
        with self.spans.around("ask", name, key):
            answer = await self._router.ask(
                partition, key, name, version, body, at_least=bound, seconds=seconds, principal=told
            )
        self.metrics.answered(name)
        return answer

    async def subscribe(
        self,
        key: str,
        query: Query[Any, Any],
        *,
        at_least: Token,
        last: str | None,
        seconds: float,
        principal: Principal | None = None,
    ) -> AsyncGenerator[bytes]:
        """The query's answer and all its changes, as server-sent events; those after the event with the id `last`.

        Raises what `ask` raises. The first event is no older than `at_least` and `last`.
        """
        key = self.checked_key(key, query)
        partition = partition_of(key, self.log.partitions)
        name, version = query.__engram__.name or "", self.codec.version_of(type(query))
        what = What(partition, key, name, version, self.codec.encode_body(query), _told(query, principal))
        topic = await self.subscriptions.topic(what, seconds=seconds)
        if last is not None:
            seen = position_of(last)
            if seen.partition != partition:
                raise Misuse(
                    f"The last event is of partition {seen.partition}, and {key!r} is in {partition}: it is of another "
                    "stream. Ask without it."
                )
            at_least |= Token.of(self.app.name, self.log.partitions, [seen])
        bound, heard = at_least.offset(partition), topic.heard(partition)
        if bound is not None and heard is not None and bound > heard:
            # What the shard says of changes up to there comes before this answer.
            await self.ask(key, query, at_least=at_least, seconds=seconds, principal=principal)
        return self.subscriptions.stream(what, topic, last)

    async def subscribe_rows(
        self, model: type[ReadModel], place: str, *, limit: int, at_least: Token, last: str | None, seconds: float
    ) -> AsyncGenerator[bytes]:
        """What a read model has at a place, and all changes of that, as server-sent events; those after the event with
        the id `last`. Raises what a look raises. The first event is no older than `at_least` and `last`."""
        what = Place(self.app.name, self.log.partitions, model, place, limit)
        if last is not None:
            at_least |= what.token(last)
        # First as anybody who reads: what is wrong, or not there yet, is told before a stream begins. And what the
        # shards say of changes up to there comes before these answers.
        await self.read_models.read(model, place, Wanted(at_least, seconds), limit=limit)
        topic = await self.subscriptions.topic(what, seconds=seconds)
        return self.subscriptions.stream(what, topic, last)

    async def check_not_ahead(self, bound: Position) -> None:
        """Raises `Ahead` when the log has no such record: to wait for it would be to wait for something else."""
        partition = bound.partition
        if bound.offset < self._ends[partition]:
            return
        # Almost never: what is asked for was seen before, and most often here.
        end = self._ends[partition] = await asyncio.to_thread(self.log.end, partition)
        if bound.offset >= end:
            raise Ahead(
                f"Record {bound.offset} of partition {partition} was asked for, and the log ends with {end - 1}: it was"
                " restored from an older backup, or this is a token of another log. Ask without it.",
                Gap(partition, end - 1, bound.offset),
            )

    async def report(self, *, digests: bool, seconds: float) -> list[ShardStatus]:
        return await self._router.report(digests=digests, seconds=seconds)

    def expect_end(self) -> None:
        """Ends what would otherwise go on for as long as its reader likes: a server cannot stop before."""
        self.events.close()
        self.subscriptions.close()

    async def end_commands(self) -> None:
        """Appends what is under way; whoever sends a command from now on is told to try later. Queries go on."""
        self.expect_end()
        await self.commands.end()

    async def close(self) -> None:
        """Ends, after what is under way is appended."""
        await self.end_commands()
        self._router.close()

    def checked_key(self, key: str, asked: Command[Any, Any] | Query[Any, Any]) -> str:
        """The key of the entity that this is for; what is shared has one of its own."""
        return self.commands.checked_key(key, type(asked))

    def _logged(self, position: Position) -> None:
        self._ends[position.partition] = max(position.offset + 1, self._ends[position.partition])


def _told(query: Query[Any, Any], principal: Principal | None) -> Principal | None:
    """On the shard nobody needs to know who asks, unless the query does."""
    return None if type(query).authorize_entity is Query.authorize_entity else principal
