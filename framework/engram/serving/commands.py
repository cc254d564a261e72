"""Commands into the log, one or many at once, and their outcomes back."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from engram.clock import Clock
from engram.codec.codec import Codec
from engram.codec.record import Envelope
from engram.errors import Corrupt, EngramError, Misuse, Unavailable
from engram.image.outcome import Outcome
from engram.log.base import Log
from engram.log.group import GroupCommit, Settled, Submitted
from engram.log.partitioner import partition_of
from engram.model.command import Command
from engram.model.keys import Keys
from engram.model.position import Position
from engram.serving.awaited import Logged
from engram.serving.gathering import Gathering
from engram.serving.metrics import Metrics
from engram.serving.router import Router
from engram.serving.spans import GatewaySpans


class CommandId(NamedTuple):
    """A client's session and its number there. A session has at most one command under way."""

    session: str
    sequence: int


class Given(NamedTuple):
    """A command for the entity of a key, with the id that its client has given it, if any."""

    key: str
    command: Command[Any, Any]
    id: CommandId | None = None
    idempotency_key: str | None = None


class Handled(NamedTuple):
    """What became of a command, and where it is in the log."""

    position: Position
    outcome: Outcome


class CommandsDoor:
    """Lives on one event loop. Of many commands at once each stands for itself: what is wrong with one is told in its
    place, and the others are logged; those of one entity in the order in which they are given.

    A command without a client's id gets one from a pool of sessions of this door, each with one command under way: so
    every command on the log has an id, and an append that was tried twice counts once.
    """

    def __init__(
        self,
        codec: Codec,
        log: Log,
        router: Router,
        *,
        writer: str,
        clock: Clock,
        metrics: Metrics,
        spans: GatewaySpans,
        on_logged: Callable[[Position], None],
    ) -> None:
        """`on_logged` hears of those that were sent together once for each partition: of the last one."""
        self._codec = codec
        self._partitions = log.partitions
        self._router = router
        self._writer = writer
        self._metrics = metrics
        self._appending = 0
        metrics.appending.set_function(lambda: self._appending)
        self._spans = spans
        self._on_logged = on_logged
        self._loop = asyncio.get_running_loop()
        self._group = GroupCommit(log, writer=writer, clock=clock, on_settled=self._settled)
        self._free: deque[CommandId] = deque()
        self._sessions = 0
        self.checked_key = Keys(codec.app).checked
        """The key of the entity that a command or query of this type is for; what is shared has one of its own."""

    async def submit(self, commands: Sequence[Given]) -> list[Position | EngramError]:
        """Returns once they are durable, with the position of each, or why it was not logged."""
        ids = [given.id or self.borrow() for given in commands]
        positions = await self._append(commands, ids)
        self._give_back(commands, ids, positions)
        return positions

    async def send(self, commands: Sequence[Given], *, seconds: float) -> list[Handled | EngramError]:
        """Returns once they are handled, with the position and outcome of each, or why that is not known."""
        ids = [given.id or self.borrow() for given in commands]
        positions = await self._append(commands, ids)
        logged = [Logged(p, *id_) for p, id_ in zip(positions, ids, strict=True) if isinstance(p, Position)]
        outcomes = iter(await self._router.replies(logged, seconds=seconds))
        found: list[Handled | EngramError] = []
        for position in positions:
            if isinstance(position, EngramError):
                found.append(position)
            else:
                outcome = next(outcomes)
                found.append(outcome if isinstance(outcome, EngramError) else Handled(position, outcome))
        self._give_back(commands, ids, found)
        return found

    def borrow(self) -> CommandId:
        """An id that nobody else has; give it back when the outcome is known."""
        if self._free:
            session, sequence = self._free.popleft()
            return CommandId(session, sequence + 1)
        self._sessions += 1
        return CommandId(f"{self._writer}.{self._sessions}", 0)

    def give_back(self, id_: CommandId) -> None:
        self._free.append(id_)

    async def end(self) -> None:
        """Appends what is under way; whoever comes from now on is told to try later."""
        await asyncio.to_thread(self._group.close)

    def _give_back(self, commands: Sequence[Given], ids: Sequence[CommandId], found: Sequence[object]) -> None:
        for given, id_, result in zip(commands, ids, found, strict=True):
            # After an error a session is left alone: its last reply may still be asked for.
            if given.id is None and not isinstance(result, Unavailable):
                self._free.append(id_)

    async def _append(self, commands: Sequence[Given], ids: Sequence[CommandId]) -> list[Position | EngramError]:
        appended: Gathering[Position | EngramError] = Gathering(len(commands))
        submitted: list[Submitted] = []
        for number, (given, id_) in enumerate(zip(commands, ids, strict=True)):
            try:
                envelope = self._envelope(given, id_)
            except Misuse as problem:
                appended.put(number, problem)
            else:
                partition = partition_of(envelope.key, self._partitions)
                submitted.append((partition, envelope, (appended, number)))
        began = self._spans.begin()
        self._group.submit_many(submitted)
        self._appending += len(submitted)
        try:
            await appended.wait()
        finally:
            self._appending -= len(submitted)
        results: list[Position | EngramError] = appended.results  # type: ignore[assignment]  # none is missing
        acknowledged: dict[str, int] = {}
        furthest: dict[int, Position] = {}
        for _, envelope, (_, number) in submitted:
            position = results[number]
            if isinstance(position, Position):
                if began:
                    await self._spans.logged(envelope.name, envelope.key, position, began)
                acknowledged[envelope.name] = acknowledged.get(envelope.name, 0) + 1
                furthest[position.partition] = position  # those of a partition were appended in this order
        for name, count in acknowledged.items():
            self._metrics.acknowledged(name, count)
        for position in furthest.values():
            self._on_logged(position)
        return results

    def _envelope(self, given: Given, id_: CommandId) -> Envelope:
        """Raises `Misuse` for a key that can name no entity, and for a command that does not survive being logged: what
        a shard cannot decode would stop its partition."""
        command = given.command
        cls = type(command)
        key = self.checked_key(given.key, cls)
        try:
            body = self._codec.encode_command(command)
        except Corrupt as problem:
            raise Misuse(f"The command does not survive being logged, so it was not: {problem}") from problem
        name, version = command.__engram__.name or "", self._codec.version_of(cls)
        return Envelope(name, version, key, body, id_.session, id_.sequence, given.idempotency_key)

    def _settled(self, settled: Settled) -> None:
        """On an appending thread: one hop to the event loop for a whole append."""
        try:
            self._loop.call_soon_threadsafe(_resolve, settled)
        except RuntimeError as problem:  # the loop is closed: nobody waits any more
            raise Unavailable("The application has stopped.") from problem


def _resolve(settled: Settled) -> None:
    for (appended, number), result in settled:
        appended.put(number, result)
