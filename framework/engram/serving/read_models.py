"""The read models of a running app: every partition is asked at once, and what they have becomes one answer."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import Awaitable, Callable, Sequence
from hashlib import blake2b
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

from engram.errors import Foreign
from engram.image.found import Found, merge_rows, merge_totals
from engram.log.base import Log
from engram.model.position import Position
from engram.model.read_model import Lookup, ReadModel, Tally, Totals
from engram.model.token import Token
from engram.serving.asking import AskingSpans
from engram.serving.router import Router
from engram.shard.look import rows_in, subtotal_in
from engram.shard.requests import Answer

PAGE_ROWS = 100
MAX_PAGE_ROWS = 10_000
# All of them are told again after each change.
MAX_WATCHED_ROWS = 1000

_PLACE = TypeAdapter(tuple[int | float, str, str])
_SEAL_BYTES = 8


class Wanted(NamedTuple):
    """What an answer must include, and how long it may take."""

    at_least: Token
    seconds: float


def rows_json(model: type[ReadModel], rows: Sequence[Found]) -> str:
    """Rows are JSON already. Those that have an order of their own come with their scores."""
    texts = [row.text for row in rows]
    if not issubclass(model, Lookup):
        texts = [f'{{"score":{json.dumps(-row.order)},"row":{row.text}}}' for row in rows]
    return f"[{','.join(texts)}]"


class RowsPage(NamedTuple):
    """Rows in their order, where to go on if there are more, and how far each partition was."""

    rows: list[Found]
    cursor: str | None
    positions: list[Position]

    def json(self, model: type[ReadModel]) -> bytes:
        rest = {"cursor": self.cursor, "positions": list(map(str, self.positions))}
        return f'{{"rows":{rows_json(model, self.rows)},{json.dumps(rest)[1:]}'.encode()


class TotalsFound(NamedTuple):
    """The totals of a group, and how far each partition was."""

    totals: Totals
    positions: list[Position]

    def json(self, _model: type[ReadModel]) -> bytes:
        return json.dumps({**self.totals._asdict(), "positions": list(map(str, self.positions))}).encode()


class ReadModelsDoor:
    """Looks into read models. Lives on one event loop.

    `check` raises `Ahead` for a position that the log does not have. `answered` is told what was looked into.
    """

    def __init__(
        self,
        log: Log,
        router: Router,
        check: Callable[[Position], Awaitable[None]],
        answered: Callable[[str], None],
        spans: AskingSpans,
    ) -> None:
        self._log = log
        self._router = router
        self._check = check
        self._answered = answered
        self._spans = spans

    async def read(
        self, model: type[ReadModel], place: str, wanted: Wanted, *, limit: int, cursor: str | None = None
    ) -> RowsPage | TotalsFound:
        """What there is at a place: `totals` of a tally, a `page` of all others."""
        if issubclass(model, Tally):
            return await self.totals(model, place, wanted)
        return await self.page(model, place, wanted, limit=limit, cursor=cursor)

    async def page(
        self, model: type[ReadModel], place: str, wanted: Wanted, *, limit: int, cursor: str | None
    ) -> RowsPage:
        """The first rows at a key, on a board or for words, or the next after those of `cursor`.

        A row that is there all the while is on one page and no more, whatever else comes and goes meanwhile; only a
        row whose own score changes moves, and can so be seen twice or not at all.
        """
        name = model.__engram__.name or ""
        after = None if cursor is None else self._opened(cursor, name, place)
        # One more than asked for tells whether there are more.
        answers = await self._scatter(name, place, wanted, after=after, limit=limit + 1)
        rows, last = merge_rows([rows_in(answer.body) for answer in answers], limit)
        return RowsPage(rows, None if last is None else self._sealed(last, name, place), _positions(answers))

    async def totals(self, model: type[ReadModel], group: str, wanted: Wanted) -> TotalsFound:
        answers = await self._scatter(model.__engram__.name or "", group, wanted)
        return TotalsFound(merge_totals(subtotal_in(answer.body) for answer in answers), _positions(answers))

    async def _scatter(
        self, name: str, place: str, wanted: Wanted, *, after: Found | None = None, limit: int = 0
    ) -> list[Answer]:
        bounds = {p: Position(p, offset, 0) for p, offset in wanted.at_least.offsets.items()}
        for bound in bounds.values():
            await self._check(bound)
        asked = [
            self._router.look(p, name, place, after=after, limit=limit, at_least=bounds.get(p), seconds=wanted.seconds)
            for p in range(self._log.partitions)
        ]
        with self._spans.around("look", name, place):
            answers = await asyncio.gather(*asked)
        self._answered(name)
        return answers

    def _sealed(self, last: Found, name: str, place: str) -> str:
        content = json.dumps(last, separators=(",", ":")).encode()
        return base64.urlsafe_b64encode(self._seal(content, name, place) + content).decode().rstrip("=")

    def _opened(self, cursor: str, name: str, place: str) -> Found:
        try:
            data = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
            seal, content = data[:_SEAL_BYTES], data[_SEAL_BYTES:]
            if seal == self._seal(content, name, place):
                return Found(*_PLACE.validate_json(content))
        except (binascii.Error, ValueError, ValidationError):
            pass
        raise Foreign(
            f"The cursor is not one of {name} at {place!r} in app {self._log.app}, or was changed: take it as it was "
            "given, or begin without one."
        )

    def _seal(self, content: bytes, name: str, place: str) -> bytes:
        # It keeps mistakes out, not people: whoever makes one up sees rows that they may see anyway.
        of = json.dumps([self._log.app, name, place]).encode()
        return blake2b(content + b"\0" + of, digest_size=_SEAL_BYTES).digest()


def _positions(answers: Sequence[Answer]) -> list[Position]:
    return [Position(answer.partition, answer.offset, answer.index) for answer in answers]
