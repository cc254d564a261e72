"""The effects of a command: everything that the messages it sent have led to, followed until nothing is open."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from engram.errors import EngramError, Unsettled
from engram.model.effects import Place
from engram.model.position import Position
from engram.serving.router import Router
from engram.shard.requests import Arrived, EffectsReport


class Inquiry(NamedTuple):
    """What one partition is to be asked: about the command itself, or about messages that were sent to it."""

    partition: int
    command: tuple[int, int] | None
    roots: list[str]
    arrived: list[Arrived]


class Following:
    """Follows a command from partition to partition. Says whom to ask, and is told what they answered.

    A partition is asked about messages that were sent to it, and answers when it has handled them, with what it has
    sent in turn. What it answers covers all that has arrived up to then, and messages arrive in the order in which they
    were sent: so when every partition has answered for the last message to it, nothing is open. By induction over the
    depth of messages: whoever sent one had been asked after it was sent.
    """

    def __init__(self, root: Position) -> None:
        self._root = root
        self._roots: list[str] | None = None
        self._open: dict[tuple[int, int], tuple[Place, Place]] = {}  # by destination and origin: after, and last
        self._answered: dict[tuple[int, int], Place] = {}

    def inquiries(self) -> list[Inquiry]:
        """Whom to ask now; all may be asked at once. None when all effects were handled."""
        if self._roots is None:
            return [Inquiry(self._root.partition, (self._root.offset, self._root.index), [], [])]
        by_partition: dict[int, list[Arrived]] = {}
        for (destination, origin), span in self._open.items():
            by_partition.setdefault(destination, []).append(Arrived(origin, *span))
        return [Inquiry(partition, None, self._roots, arrived) for partition, arrived in by_partition.items()]

    def note(self, inquiry: Inquiry, report: EffectsReport) -> None:
        """What the partition answered."""
        if self._roots is None:
            self._roots = report.roots
        for origin, _, last in inquiry.arrived:
            pair = inquiry.partition, origin
            self._answered[pair] = max(last, self._answered.get(pair, last))
        for destination, (first, last) in report.sent.items():
            pair = destination, inquiry.partition
            offset, index, number = first
            after = self._answered.get(pair, (offset, index, number - 1))
            if last > after:
                still_open = self._open.get(pair, (after, last))
                self._open[pair] = min(after, still_open[0]), max(last, still_open[1])
        for pair, (_, last) in list(self._open.items()):
            if self._answered.get(pair, (-1, 0, 0)) >= last:
                del self._open[pair]


async def settle(router: Router, command: Position, *, seconds: float) -> list[Position]:
    """Returns when everything that the command has led to is handled, but for timers; with a position in each partition
    that had a part in it, which includes all of it.

    Raises `Unsettled` when that does not happen in time, or can no longer be found out.
    """
    seconds = max(seconds, 0)
    following = Following(command)
    reached: list[Position] = [command]
    try:
        async with asyncio.timeout(seconds):
            while inquiries := following.inquiries():
                asked = (router.ask_effects(*inquiry, seconds=seconds) for inquiry in inquiries)
                for inquiry, (answer, report) in zip(inquiries, await asyncio.gather(*asked), strict=True):
                    reached.append(Position(answer.partition, answer.offset, answer.index))
                    following.note(inquiry, report)
    except TimeoutError:
        where = ", ".join(str(inquiry.partition) for inquiry in following.inquiries())
        raise _unsettled(command, f"Partition {where} has not answered for its part within {seconds:.1f} s.") from None
    except EngramError as problem:
        raise _unsettled(command, str(problem)) from problem
    return reached


def _unsettled(command: Position, why: str) -> Unsettled:
    return Unsettled(f"The command was handled at {command}; whether its effects were is not known. {why}")
