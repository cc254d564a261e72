"""A place of a read model that is watched: what all partitions say of it becomes one answer after another."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from engram.errors import Foreign
from engram.image.found import Found, Subtotal, merge_rows, merge_totals
from engram.model.position import Position
from engram.model.read_model import ReadModel, Search, Tally
from engram.model.token import Token
from engram.serving.read_models import rows_json
from engram.serving.topic import KEPT, KEPT_MISSED, Topic
from engram.shard.look import rows_in, subtotal_in
from engram.shard.requests import Changed, SubscribeRows


class Place(NamedTuple):
    """The first rows at a key, on a board or for words, or the totals of a group, in all partitions of an app."""

    app: str
    count: int  # type: ignore[assignment]  # of partitions, not tuple.count
    model: type[ReadModel]
    place: str
    limit: int

    @property
    def partitions(self) -> Sequence[int]:
        return range(self.count)

    def topic(self) -> RowsTopic:
        return RowsTopic(self)

    def subscribe(self, id_: int, partition: int, after: int | None, *, base: bool, lease_ms: int) -> SubscribeRows:
        name = self.model.__engram__.name or ""
        return SubscribeRows(id_, partition, name, self.place, self.limit, lease_ms, after, base)

    def token(self, last: str) -> Token:
        """Where a reader is who has seen the event with that id. Raises `Foreign` for an id of something else."""
        token = Token.parse(last)
        token.check(self.app, self.count)
        if len(token.offsets) < self.count:
            raise Foreign("The last event is of another stream: it does not name all partitions. Ask without it.")
        return token


class _Part:
    """What one partition has, as it was heard, and as it was taken into the answer. `start` is the record after which
    it is wanted; without one, from now on."""

    def __init__(self, start: int | None) -> None:
        self._start = start
        self._missing: int | None = None  # where it was seen last that something is missing
        self.heard = start
        self.waiting: deque[tuple[Changed, bool]] = deque()  # with whether there may have been others before it
        self.gap = False  # what it began with is not of `start`
        self.position = Position(-1, -1, 0)
        self.kind = ""
        self.body = b""
        self.rows: list[Found] = []
        self.subtotal: Subtotal | None = None

    @property
    def known(self) -> bool:
        return self.position.offset >= 0

    def is_as_far_as(self, other: _Part) -> bool:
        """Whether it is the same state, when all that the other has taken in was taken in here."""
        if self.heard is None or not self.known or not other.known:
            return False
        return self.position.offset <= other.position.offset <= self.heard

    def hear(self, changed: Changed, *, tallied: bool) -> bool:
        if not self.known:
            return self._begin(changed, tallied=tallied)
        assert self.heard is not None
        if changed.offset <= self.heard:
            return False
        if changed.since is not None and changed.since > self.heard:
            return self._lost(self.heard)
        self.waiting.append((changed, changed.since is None))
        self.heard = changed.offset
        return False

    def take(self, changed: Changed, *, tallied: bool) -> None:
        self.position = Position(changed.partition, changed.offset, changed.index)
        if (self.kind, self.body) == (changed.kind, changed.body):
            return
        self.kind, self.body = changed.kind, changed.body
        answered = self.kind == "answer"
        self.rows = rows_in(self.body) if answered and not tallied else []
        self.subtotal = subtotal_in(self.body) if answered and tallied else None

    def _begin(self, changed: Changed, *, tallied: bool) -> bool:
        start = self._start
        if start is not None and changed.offset != start:
            if changed.offset < start:
                return False  # of an owner that was replaced
            if changed.since is not None:
                return self._lost(start)  # what comes before it has not come
            self.gap = True
        self.heard = changed.offset
        self.take(changed, tallied=tallied)
        return False

    def _lost(self, after: int) -> bool:
        """Something is missing after this record. Whether that is new."""
        again, self._missing = self._missing != after, after
        return again


class RowsTopic(Topic):
    """The answers of one place. With `last`, the id of an event, it is of the changes after that, as far as `shared`
    has come, which all others read.

    Partitions change at their own pace, so what is told is one of the orders in which it can have been: each
    partition's changes in theirs. Every answer is what a read at its positions gives.
    """

    def __init__(self, place: Place, *, last: str = "", shared: RowsTopic | None = None) -> None:
        super().__init__(kept=KEPT if shared is None else KEPT_MISSED)
        self._place = place
        self._tallied = issubclass(place.model, Tally)
        self._shared = shared
        starts = place.token(last).offsets if last else {}
        self._parts = [_Part(starts.get(partition)) for partition in place.partitions]
        self._shown: bytes | None = None

    def hear(self, changed: Changed) -> bool:
        again = self._parts[changed.partition].hear(changed, tallied=self._tallied)
        self._go_on()
        return again

    def heard(self, partition: int) -> int | None:
        return self._parts[partition].heard

    def lacks_base(self, partition: int) -> bool:
        part = self._parts[partition]
        return part.heard is not None and not part.known

    def resume(self, last: str) -> int | None:
        id_ = str(self._place.token(last))
        return next((change.number + 1 for change in self._kept if change.id == id_), None)

    def missed(self, last: str) -> RowsTopic:
        return RowsTopic(self._place, last=last, shared=self)

    def join(self, missed: RowsTopic) -> int | None:
        before = missed.number
        missed._go_on()
        pairs = zip(missed._parts, self._parts, strict=True)
        there = all(part.is_as_far_as(other) for part, other in pairs)
        return self.number if there and missed.number == before else None

    def _go_on(self) -> None:
        """Takes in what has come; nothing before all partitions have said what they have."""
        if not all(part.known for part in self._parts):
            return
        if self._shown is None:
            self._show(first=self._shared is None, gap=any(part.gap for part in self._parts))
        for partition, part in enumerate(self._parts):
            while part.waiting and self._may_take(partition, part.waiting[0][0]):
                changed, gap = part.waiting.popleft()
                part.take(changed, tallied=self._tallied)
                self._show(gap=gap)

    def _may_take(self, partition: int, changed: Changed) -> bool:
        """Who has missed something must come out where all others are: beyond that, partitions have no order."""
        return self._shared is None or changed.offset <= self._shared._parts[partition].position.offset  # noqa: SLF001

    def _show(self, *, gap: bool, first: bool = False) -> None:
        kind, content, shown = self._merged()
        before, self._shown = self._shown, shown
        if not (first or gap or (before is not None and shown != before)):
            return
        positions = [part.position for part in self._parts]
        told = {"positions": list(map(str, positions)), **({"gap": True} if gap else {})}
        rest = json.dumps(told, separators=(",", ":"))
        token = Token.of(self._place.app, self._place.count, positions)
        body = content if kind == "answer" else content[len(b'"refused":') :]
        self._add(str(token), kind, body, b"{%s,%s" % (content, rest[1:].encode()))

    def _merged(self) -> tuple[str, bytes, bytes]:
        """The kind of answer, its content, and what of that a reader takes for a change."""
        refused = next((part for part in self._parts if part.kind != "answer"), None)
        if refused is not None:
            content = b'"refused":%s' % refused.body
            return refused.kind, content, content
        if self._tallied:
            found = merge_totals(part.subtotal for part in self._parts if part.subtotal is not None)
            content = json.dumps(found._asdict())[1:-1].encode()
            return "answer", content, content
        rows, _ = merge_rows((part.rows for part in self._parts), self._place.limit)
        content = b'"rows":%s' % rows_json(self._place.model, rows).encode()
        # How relevant a text is changes with every text of its partition: that alone is not worth telling.
        quiet = issubclass(self._place.model, Search)
        return "answer", content, "\n".join(row.text for row in rows).encode() if quiet else content
