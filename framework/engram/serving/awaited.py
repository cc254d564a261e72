"""Outcomes of commands that were logged here, on their way to whoever waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from engram.image.outcome import Outcome
from engram.model.position import Position
from engram.serving.gathering import Gathering
from engram.shard.requests import Await, Replies

# Replies can overtake the append's own return, so the latest are kept until somebody comes for them.
_RECENT_RECORDS = 10_000
# A reply that was sent before the line was up is lost; after this long without a word it is asked for.
_ASK_AGAIN_S = 1.0


class Logged(NamedTuple):
    """A command that is in the log, and its id."""

    position: Position
    session: str
    sequence: int


class _Waiting(NamedTuple):
    command: Logged
    gathering: Gathering[Outcome]
    number: int


class AwaitedReplies:
    """Lives on one event loop. `ask` has a shard asked for outcomes of which no word has come."""

    def __init__(self, ask: Callable[[Await], None]) -> None:
        self._ask = ask
        self._waiting: dict[tuple[int, int], dict[int, _Waiting]] = {}  # by record, then by index
        self._recent: dict[tuple[int, int], list[Outcome]] = {}

    async def of(self, commands: Sequence[Logged], *, seconds: float) -> list[Outcome | None]:
        """The outcome of each, or None for those that were not known in time."""
        loop = asyncio.get_running_loop()
        gathering: Gathering[Outcome] = Gathering(len(commands))
        for number, command in enumerate(commands):
            position = command.position
            record = position.partition, position.offset
            recent = self._recent.get(record)
            if recent is not None:
                gathering.put(number, recent[position.index])
            else:
                self._waiting.setdefault(record, {})[position.index] = _Waiting(command, gathering, number)
        if gathering.complete:  # a single command's reply comes together with the word that it is logged
            return gathering.results
        asking = _Asking(loop.time() + max(seconds, 0), commands, gathering, self._ask)
        try:
            await gathering.wait()
        finally:
            asking.end()
            for number in gathering.missing():
                self._forget(commands[number].position)
        return gathering.results

    def replied(self, replies: Replies) -> None:
        record = replies.partition, replies.offset
        outcomes = replies.outcomes
        if replies.indices is None:
            self._recent[record] = outcomes
            if len(self._recent) > _RECENT_RECORDS:
                del self._recent[next(iter(self._recent))]
            for index, waiting in self._waiting.pop(record, {}).items():
                waiting.gathering.put(waiting.number, outcomes[index])
            return
        of_record = self._waiting.get(record, {})
        for index, outcome in zip(replies.indices, outcomes, strict=True):
            if index in of_record:
                waiting = of_record[index]
                waiting.gathering.put(waiting.number, outcome)
                self._forget(waiting.command.position)

    def open_in(self, partition: int) -> list[Await]:
        """What to ask a new owner of the partition for."""
        commands = [w.command for (of, _), record in self._waiting.items() if of == partition for w in record.values()]
        return _questions(commands)

    def _forget(self, position: Position) -> None:
        record = position.partition, position.offset
        of_record = self._waiting.get(record, {})
        of_record.pop(position.index, None)
        if not of_record:
            self._waiting.pop(record, None)


class _Asking:
    """Asks for what is missing, now and then until the deadline; then nobody waits any longer."""

    def __init__(
        self, deadline: float, commands: Sequence[Logged], gathering: Gathering[Outcome], ask: Callable[[Await], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._deadline = deadline
        self._commands = commands
        self._gathering = gathering
        self._ask = ask
        self._timer = self._next()

    def end(self) -> None:
        self._timer.cancel()

    def _next(self) -> asyncio.TimerHandle:
        return self._loop.call_at(min(self._loop.time() + _ASK_AGAIN_S, self._deadline), self._look)

    def _look(self) -> None:
        if self._loop.time() >= self._deadline:
            self._gathering.give_up()
            return
        for asked in _questions([self._commands[number] for number in self._gathering.missing()]):
            self._ask(asked)
        self._timer = self._next()


def _questions(commands: Sequence[Logged]) -> list[Await]:
    records: dict[tuple[int, int], list[tuple[int, str, int]]] = {}
    for (partition, offset, index), session, sequence in commands:
        records.setdefault((partition, offset), []).append((index, session, sequence))
    return [Await(*record, asked) for record, asked in records.items()]
