"""The quarantine of a running app: what failed in which partition, sent again or dropped."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from engram.clock import Clock
from engram.codec.codec import Codec
from engram.codec.record import Envelope, Kind, encode_commands
from engram.errors import Corrupt, EngramError, Misuse, Unavailable
from engram.image.outcome import Outcome, Verdict
from engram.image.quarantine import QuarantineRow
from engram.log.base import Entry, Log
from engram.log.partitioner import partition_of
from engram.model.app import entity_of
from engram.model.command import Broadcast
from engram.model.entity import EVERYWHERE
from engram.model.position import Position
from engram.model.version import Version
from engram.serving.awaited import Logged
from engram.serving.failed import Dropped, FailedCommand, FailedCommandDetail, FailedCommands, NotServed, Retried
from engram.serving.registry import Registry
from engram.serving.router import Router
from engram.shard.requests import QuarantineReport

LISTED_ROWS = 100
MAX_LISTED_ROWS = 10_000

Id = tuple[str, int]  # a session and a number in it


class QuarantineDoor:
    """Lists, retries and drops failed commands. Lives on one event loop; appends on threads.

    To retry is to append one record, with the command as a new one and the word that takes the old one off the list;
    to drop is to append that word alone. So both survive a crash, and a replay does the same.
    """

    def __init__(
        self,
        codec: Codec,
        log: Log,
        registry: Registry,
        router: Router,
        *,
        writer: str,
        clock: Clock,
        borrow: Callable[[], Any],
        give_back: Callable[[Any], None],
    ) -> None:
        """`borrow` gives the id of a new command of `writer`, and its session is free again after `give_back`."""
        self._codec = codec
        self._log = log
        self._registry = registry
        self._router = router
        self._writer = writer
        self._clock = clock
        self._borrow = borrow
        self._give_back = give_back
        self._retrying: dict[Position, asyncio.Task[Retried | None]] = {}

    async def listed(self, *, limit: int, seconds: float) -> FailedCommands:
        """The newest of all partitions, up to `limit`. Partitions that do not answer in time are told."""
        partitions = range(self._log.partitions)
        found = await asyncio.gather(*(self._listed_in(p, limit, seconds) for p in partitions))
        reports = [(p, report) for p, report in enumerate(found) if isinstance(report, QuarantineReport)]
        rows = [(Position(p, row.offset, row.index), row) for p, report in reports for row in report.rows]
        rows.sort(key=lambda placed: (placed[1].time, placed[0]), reverse=True)
        return FailedCommands(
            count=sum(report.count for _, report in reports),
            listed=sum(report.listed for _, report in reports),
            rows=[FailedCommand(**self._about(*placed)) for placed in rows[:limit]],
            not_served=[missing for missing in found if isinstance(missing, NotServed)],
        )

    async def row(self, position: Position, *, seconds: float) -> FailedCommandDetail | None:
        """All that is known of a failed command; None if there is none at that position."""
        row = await self._row(position, seconds=seconds)
        if row is None:
            return None
        body = json.loads(row.body) if row.body else None
        more = {"version": row.version, "body": body, "traceback": row.traceback}
        return FailedCommandDetail(**self._about(position, row), **more)

    async def retry(self, position: Position, *, seconds: float) -> Retried | None:
        """Sends a failed command again, and returns what became of it; None if there is none at that position.

        Whoever asks for the same while it is under way gets the same. The command has an idempotency key, so even two
        gateways do not have it handled twice. Raises `Misuse` for one that cannot be sent again.
        """
        under_way = self._retrying.get(position)
        if under_way is None:
            under_way = self._retrying[position] = asyncio.create_task(self._retry(position, seconds))
            under_way.add_done_callback(lambda _: self._retrying.pop(position))
        return await asyncio.shield(under_way)

    async def drop(self, position: Position, *, seconds: float) -> Dropped | None:
        """Takes a failed command off the list, and returns when that is done; None if it is not on it."""
        if await self._row(position, seconds=seconds) is None:
            return None
        at = await self._append(position, [])
        place = position.offset, position.index
        await self._router.ask_quarantine(at.partition, place=place, at_least=at, seconds=seconds)
        return Dropped(position=at)

    async def _listed_in(self, partition: int, limit: int, seconds: float) -> QuarantineReport | NotServed:
        try:
            # Without waiting: whoever looks here looks because something is wrong.
            if self._registry.lookup(partition) is None and not self._registry.problem(partition):
                raise Unavailable(f"No shard serves partition {partition} now; it is starting or recovering.")
            self._check_not_stuck(partition)
            return await self._router.ask_quarantine(partition, limit=limit, seconds=seconds)
        except EngramError as problem:
            return NotServed(partition=partition, problem=str(problem))

    async def _row(self, position: Position, *, seconds: float) -> QuarantineRow | None:
        if position.partition >= self._log.partitions:
            return None
        self._check_not_stuck(position.partition)
        place = position.offset, position.index
        report = await self._router.ask_quarantine(position.partition, place=place, seconds=seconds)
        return report.rows[0] if report.rows else None

    def _check_not_stuck(self, partition: int) -> None:
        problem = self._registry.stuck(partition)
        if problem:
            raise Unavailable(problem)

    async def _retry(self, position: Position, seconds: float) -> Retried | None:
        row = await self._row(position, seconds=seconds)
        if row is None:
            return None
        name, version, body = self._command_of(position, row)
        id_: Id = self._borrow()
        envelope = Envelope(name, version, row.key, body, *id_, f"retry {position}")
        at = await self._append(position, [envelope])
        outcome = await self._router.reply(Logged(at, *id_), seconds=seconds)
        self._give_back(id_)
        return await self._retried(at, outcome, seconds)

    async def _append(self, position: Position, envelopes: list[Envelope]) -> Position:
        """Appends the commands and the release of `position` as one record: not with those of others, whose failures
        would be counted on top of its own."""
        payload = encode_commands(envelopes, self._writer, releases=[(position.offset, position.index)])
        entry = Entry(position.partition, Kind.COMMANDS, self._clock(), payload)
        (offset,) = await asyncio.to_thread(self._log.append, [entry])
        return Position(position.partition, offset, 0)

    async def _retried(self, at: Position, outcome: Outcome, seconds: float) -> Retried:
        content = json.loads(outcome.body)
        if outcome.verdict is Verdict.REPLY:
            return Retried(position=at, outcome=outcome.verdict, reply=content)
        if outcome.verdict is Verdict.REJECTED:
            return Retried(position=at, outcome=outcome.verdict, code=content["code"], error=content["text"])
        row = None
        with suppress(EngramError):  # what became of the command is known; only more about it is not
            row = await self._row(at, seconds=seconds)
        error, failures = (content["error"], 0) if row is None else (row.error, row.failures)
        return Retried(position=at, outcome=outcome.verdict, error=error, failures=failures)

    def _command_of(self, position: Position, row: QuarantineRow) -> tuple[str, Version, bytes]:
        """Name, version and body of the command as the app has it now; what cannot be decoded must not be logged."""
        if not row.command:
            raise Misuse(
                f"{position} is a record that nobody could read: write it anew as it should be, and drop this."
            )
        if not row.body:
            raise Misuse(
                f"The fields of {row.command} at {position} are not known, because its handler put something else into "
                "them: send it anew, and drop this one."
            )
        cls = self._codec.app.commands.get(row.command)
        home = partition_of(EVERYWHERE, self._log.partitions)
        if cls is not None and issubclass(cls, Broadcast) and position.partition != home:
            raise Misuse(
                f"{row.command} was broadcast, and failed in partition {position.partition} alone: sent again, it "
                "would be handled twice in all others. Broadcast something that puts it right, and drop this one."
            )
        try:
            command = self._codec.decode_command(row.command, row.version, row.body.encode())
            body = self._codec.encode_command(command)
            version = self._codec.version_of(type(command))
        except Corrupt as problem:
            raise Misuse(
                f"{row.command} at {position} cannot be read any more: {problem}. Send what it should be, and drop "
                "this one."
            ) from problem
        return row.command, version, body

    def _about(self, position: Position, row: QuarantineRow) -> dict[str, Any]:
        cls = self._codec.app.commands.get(row.command)
        return {
            "position": position,
            "command": row.command,
            "entity": "" if cls is None else entity_of(cls).__engram__.name or "",
            "key": row.key,
            "time": datetime.fromtimestamp(row.time / 1000, UTC),
            "error": row.error,
            "failures": row.failures,
        }
