"""Topics: something that is watched, and its latest changes, which all readers take from here at their own pace."""

from __future__ import annotations

import asyncio
import json
import zlib
from abc import ABC, abstractmethod
from collections import deque
from typing import Any, NamedTuple, Self

from engram.errors import Denied, EngramError, Misuse, Quarantined, Rejected
from engram.model.position import Position
from engram.model.sealed import MARK
from engram.shard.requests import Changed

# How far a reader may be behind the others before it is dropped; and how much is kept of what is watched.
KEPT = 256
_KEPT_BYTES = 16 * 1024 * 1024
# And of what one reader has missed: that comes faster than it can be sent.
KEPT_MISSED = 10_000

_REFUSED: dict[str, type[EngramError]] = {"misuse": Misuse, "denied": Denied}


class Change(NamedTuple):
    """What it came to. `number` counts those of a topic, `id` is where to go on after it, and `body` the answer's JSON,
    or what was refused, and why. `data` is what readers get."""

    number: int
    id: str
    kind: str
    body: bytes
    data: bytes

    def message(self) -> bytes:
        event = b"answer" if self.kind == "answer" else b"refused"
        return b"id: %s\nevent: %s\ndata: %s\n\n" % (self.id.encode(), event, self.data)

    def check(self) -> None:
        """Raises what was refused with."""
        if self.kind != "answer":
            raise refusal(json.loads(self.body))


def refusal(content: dict[str, str]) -> EngramError:
    """The error that a refused answer stands for."""
    if content["kind"] == "rejected":
        return Rejected(content["code"], content["text"])
    return _REFUSED.get(content["kind"], Quarantined)(content["text"])


class TooSlow(Exception):
    """A reader is so far behind that what comes next for it is no longer kept."""

    def __init__(self, behind: int, kept: int) -> None:
        super().__init__(
            f"You are {behind} changes behind, and {kept} are kept: read faster, and come back for the rest."
        )
        self.behind = behind


def dropped(reason: str, **more: Any) -> bytes:
    """The last event of a stream that is ended before its reader wants it to."""
    return b"event: dropped\ndata: %s\n\n" % json.dumps({"reason": reason, **more}).encode()


class Topic(ABC):
    """Numbered changes. Lives on one event loop."""

    def __init__(self, *, kept: int = KEPT) -> None:
        self._kept: deque[Change] = deque()
        self._most = kept
        self._bytes = 0
        self._rung = asyncio.Event()
        self.number = 0  # of the next change
        self.readers = 0
        self.left = asyncio.get_running_loop().time()  # when the last reader went
        self.waking: set[Topic] = set()  # those whose readers wait until this one has heard something

    # What shards say

    @abstractmethod
    def hear(self, changed: Changed) -> bool:
        """What an owner said. What is not new is left out: of two owners, or of one who was asked again. So is what
        comes too early; True if that is to be asked for once more, from what was heard on."""

    @abstractmethod
    def heard(self, partition: int) -> int | None:
        """The record up to which everything was heard of."""

    @abstractmethod
    def lacks_base(self, partition: int) -> bool:
        """Whether what it was with that record is to be told, too."""

    # Readers that come back

    @abstractmethod
    def resume(self, last: str) -> int | None:
        """The number of the first change after the event with that id; None if that is not known here."""

    @abstractmethod
    def missed(self, last: str) -> Self:
        """A topic of what is not known here: of the changes after that event."""

    @abstractmethod
    def join(self, missed: Self) -> int | None:
        """The number of the first change that comes after all of those; None while they are not as far as this."""

    # Changes

    @property
    def latest(self) -> Change | None:
        return self._kept[-1] if self._kept else None

    def has(self, number: int) -> bool:
        return self.number > number

    def change(self, number: int) -> Change:
        """The change with this number, which there was. Raises `TooSlow` if it is no longer kept."""
        first = self._kept[0].number
        if number < first:
            raise TooSlow(self.number - number, len(self._kept))
        return self._kept[number - first]

    async def news(self, number: int, seconds: float) -> bool:
        """Waits until there is a change with this number; False if there is none in time, or somebody rang."""
        try:
            async with asyncio.timeout(seconds):
                await self._rung.wait() if not self.has(number) else None
        except TimeoutError:
            pass
        return self.has(number)

    def ring(self) -> None:
        """Wakes all who wait for news."""
        self._rung.set()
        self._rung = asyncio.Event()

    def _add(self, id_: str, kind: str, body: bytes, data: bytes) -> None:
        self._kept.append(Change(self.number, id_, kind, body, data))
        self.number += 1
        self._bytes += len(data)
        while len(self._kept) > 1 and (len(self._kept) > self._most or self._bytes > _KEPT_BYTES):
            self._bytes -= len(self._kept.popleft().data)
        self.ring()


class AnswerTopic(Topic):
    """One query of one entity. With `last`, the id of an event, it is of the changes after that."""

    def __init__(self, *, last: str = "", kept: int = KEPT) -> None:
        super().__init__(kept=kept)
        self._seen = last.partition(MARK)[2]  # the checksum of the answer before all that are kept
        self._missing: Position | None = None  # where it was seen last that something is missing
        self.at = position_of(last) if last else None  # the newest state that was heard of

    def hear(self, changed: Changed) -> bool:
        position = Position(changed.partition, changed.offset, changed.index)
        if self.at is not None and position <= self.at:
            return False
        if self.at is not None and changed.since is not None and changed.since > self.at.offset:
            again, self._missing = self._missing != self.at, self.at
            return again
        gap = self.at is not None and changed.since is None
        self.at = position
        if gap or not self._is_latest(changed):
            what = b"answer" if changed.kind == "answer" else b"refused"
            more = b',"gap":true' if gap else b""
            data = b'{"%s":%s,"position":"%s"%s}' % (what, changed.body, position.written(), more)
            # With a checksum of the answer, so that the same is not told twice.
            self._add(f"{position}{MARK}{_checksum(changed.body)}", changed.kind, changed.body, data)
        elif not self._kept:
            self.ring()
        return False

    def heard(self, partition: int) -> int | None:
        return None if self.at is None else self.at.offset

    def lacks_base(self, partition: int) -> bool:
        return False  # the checksum is enough

    def resume(self, last: str) -> int | None:
        return self._after(position_of(last))

    def missed(self, last: str) -> AnswerTopic:
        return AnswerTopic(last=last, kept=KEPT_MISSED)

    def join(self, missed: AnswerTopic) -> int | None:
        return None if missed.at is None else self._after(missed.at)

    def _after(self, position: Position) -> int | None:
        """The number of the first change after a position, if all after it are kept or will be heard of."""
        if not self._kept or self.at is None or not position_of(self._kept[0].id) <= position <= self.at:
            return None
        return next((change.number for change in self._kept if position_of(change.id) > position), self.number)

    def _is_latest(self, changed: Changed) -> bool:
        latest = self.latest
        if latest is None:
            return self._seen == _checksum(changed.body)
        return (latest.kind, latest.body) == (changed.kind, changed.body)


def position_of(event_id: str) -> Position:
    """The position in the id of an event. Raises `Misuse` if it has none."""
    return Position.parse(event_id.partition(MARK)[0])


def _checksum(body: bytes) -> str:
    return f"{zlib.crc32(body):08x}"
