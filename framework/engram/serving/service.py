"""The application's door, without HTTP: commands into the log, replies and answers out of live state."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from typing import Any, NamedTuple

from engram.clock import Clock
from engram.codec.codec import Codec
from engram.codec.record import Envelope
from engram.errors import Corrupt, EngramError, Misuse, Unavailable
from engram.image.outcome import Outcome
from engram.log.base import Log
from engram.log.group import GroupCommit, Settled
from engram.log.partitioner import partition_of
from engram.model.app import App
from engram.model.command import Command
from engram.model.context import check_key
from engram.model.position import Position
from engram.model.query import Query
from engram.serving.registry import Registry
from engram.serving.router import Router
from engram.shard.requests import Answer, ShardStatus


class CommandId(NamedTuple):
    """A client's session and its number there. A session has at most one command under way."""

    session: str
    sequence: int


class Service:
    """Sends commands and asks queries for one app. Lives on one event loop.

    A command without a client's id gets one from a pool of sessions of this service, each with one command
    under way: so every command on the log has an id, and an append that was tried twice counts once.
    """

    def __init__(self, app: App, log: Log, registry: Registry, *, clock: Clock) -> None:
        self.app = app
        self.log = log
        self.registry = registry
        self.codec = Codec(app)
        self._writer = f"g:{secrets.token_hex(6)}"
        self._router = Router(registry, self._writer)
        self._loop = asyncio.get_running_loop()
        self._group = GroupCommit(log, writer=self._writer, clock=clock, on_settled=self._settled)
        self._free: deque[CommandId] = deque()
        self._sessions = 0

    async def submit(
        self,
        key: str,
        command: Command[Any, Any],
        *,
        command_id: CommandId | None = None,
        idempotency_key: str | None = None,
    ) -> Position:
        """Returns once the command is durable, with its position."""
        position, borrowed = await self._append(key, command, command_id or self._borrow(), idempotency_key)
        if command_id is None:
            self._free.append(borrowed)
        return position

    async def send(
        self,
        key: str,
        command: Command[Any, Any],
        *,
        command_id: CommandId | None = None,
        idempotency_key: str | None = None,
        seconds: float,
    ) -> tuple[Position, Outcome]:
        """Returns once the command is handled, with its position and outcome."""
        position, used = await self._append(key, command, command_id or self._borrow(), idempotency_key)
        outcome = await self._router.reply(position, *used, seconds=seconds)
        if command_id is None:  # after an error the session is left alone: its last reply may still be asked for
            self._free.append(used)
        return position, outcome

    async def ask(self, key: str, query: Query[Any, Any], *, at_least: list[Position], seconds: float) -> Answer:
        """The answer of live state. `at_least` may name any partitions; only the key's own counts."""
        check_key(key)
        partition = partition_of(key, self.log.partitions)
        bound = max((p for p in at_least if p.partition == partition), default=None)
        name, version = query.__engram__.name or "", query.__engram__.version
        body = self.codec.encode_body(query)
        return await self._router.ask(partition, key, name, version, body, at_least=bound, seconds=seconds)

    async def report(self, *, digests: bool, seconds: float) -> list[ShardStatus]:
        return await self._router.report(digests=digests, seconds=seconds)

    async def close(self) -> None:
        """Appends what is under way, then ends."""
        await asyncio.to_thread(self._group.close)
        self._router.close()

    async def _append(
        self, key: str, command: Command[Any, Any], id_: CommandId, idempotency_key: str | None
    ) -> tuple[Position, CommandId]:
        check_key(key)
        partition = partition_of(key, self.log.partitions)
        name, version = command.__engram__.name or "", command.__engram__.version
        envelope = Envelope(name, version, key, self._loggable(command), *id_, idempotency_key)
        appended: asyncio.Future[Position] = self._loop.create_future()
        self._group.submit(partition, envelope, appended)
        return await appended, id_

    def _loggable(self, command: Command[Any, Any]) -> bytes:
        """The command's body, which was read back: what a shard cannot decode would stop its partition."""
        name, version = command.__engram__.name or "", command.__engram__.version
        body = self.codec.encode_body(command)
        try:
            self.codec.decode_command(name, version, body)
        except Corrupt as problem:
            raise Misuse(f"The command does not survive being logged, so it was not: {problem}") from problem
        return body

    def _borrow(self) -> CommandId:
        if self._free:
            session, sequence = self._free.popleft()
            return CommandId(session, sequence + 1)
        self._sessions += 1
        return CommandId(f"{self._writer}.{self._sessions}", 0)

    def _settled(self, settled: Settled) -> None:
        """On the appending thread: one hop to the event loop for a whole append."""
        try:
            self._loop.call_soon_threadsafe(self._resolve, settled)
        except RuntimeError as problem:  # the loop is closed: nobody waits any more
            raise Unavailable("The application has stopped.") from problem

    @staticmethod
    def _resolve(settled: Settled) -> None:
        future: asyncio.Future[Position]
        for future, result in settled:
            if future.done():
                continue
            if isinstance(result, EngramError):
                future.set_exception(result)
            else:
                future.set_result(result)
