"""What does it cost to be able to take a handler's changes back?

Ways to undo, side by side, on a small entity (impressions and clicks of a tweet, as in `hotpath`) and on a large one
(a dict of 10,000 keys): the cost per command when all goes well, and when the handler raises after its changes, each
with the same few calls around it. The last rows are the real hot path of the small entity, with undo and without: the
chosen way's share is of that.
"""

from __future__ import annotations

import copy
import json
import random
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from engram import Entity
from engram.codec.codec import Codec
from engram.codec.record import Envelope, Kind, Record, encode_commands
from engram.image.guard import guard_for
from engram.image.home import set_mark
from engram.image.image import Handled, Image
from engram.image.outcome import DONE
from engram.image.undo import UndoLog, adopt
from engram.shard.garbage import collect_rarely
from pydantic import TypeAdapter

from bench.result import Aim, Result, Row
from bench.workload import BATCH, SESSIONS, TWEETS, Tweet, app, traffic

COMMANDS = 20_000
REPETITIONS = 7
PAIRS = 61
LARGE = 10_000
ENCODE_EVERY = 16
CLICKS = 0.3


@dataclass(slots=True, kw_only=True)
class Account(Entity, name="account"):
    followers: dict[str, int] = field(default_factory=dict)
    count: int = 0


Change = Callable[[Any, int], None]


def impression_or_click(tweet: Tweet, number: int) -> None:
    if number % 10 >= 10 * CLICKS:
        tweet.impressions += 1
        return
    tweet.clicks += 1
    tweet.urls.append(f"u{number}")
    if len(tweet.urls) > 5:
        del tweet.urls[0]


def follow(account: Account, number: int) -> None:
    account.count += 1
    account.followers[f"f{number % LARGE}"] = number


class Way(Protocol):
    """A way to undo: told before a change, and after it how it ended."""

    def before(self, entity: Any) -> None: ...
    def kept(self, entity: Any, change: Change, number: int) -> None: ...
    def back(self, entity: Any) -> Any: ...


class Nothing:
    """No undo at all."""

    def __init__(self, cls: type[Entity]) -> None: ...
    def before(self, entity: Any) -> None: ...
    def kept(self, entity: Any, change: Change, number: int) -> None: ...
    def back(self, entity: Any) -> Any:
        return entity


class DeepCopy(Nothing):
    def before(self, entity: Any) -> None:
        self.kept_copy = copy.deepcopy(entity)

    def back(self, entity: Any) -> Any:
        return self.kept_copy


class CopyContainers(Nothing):
    """Fields and first-level containers: what copying on the first write comes to."""

    def __init__(self, cls: type[Entity]) -> None:
        self.names = [f.name for f in fields(cls)]

    def before(self, entity: Any) -> None:
        values = [getattr(entity, name) for name in self.names]
        self.values = [v.copy() if type(v) in (list, dict) else v for v in values]

    def back(self, entity: Any) -> Any:
        for name, value in zip(self.names, self.values, strict=True):
            setattr(entity, name, value)
        return entity


class EncodeBefore(Nothing):
    def __init__(self, cls: type[Entity]) -> None:
        adapter = TypeAdapter(cls)
        self.encode, self.decode = adapter.serializer.to_json, adapter.validator.validate_json

    def before(self, entity: Any) -> None:
        self.form = self.encode(entity)

    def back(self, entity: Any) -> Any:
        return self.decode(self.form)


class Journal(EncodeBefore):
    """The last encoded form and the commands since; encoded again every few commands."""

    def __init__(self, cls: type[Entity]) -> None:
        super().__init__(cls)
        self.since: list[tuple[Change, int]] = []
        self.form = b""

    def before(self, entity: Any) -> None:
        if not self.form or len(self.since) >= ENCODE_EVERY:
            self.form = self.encode(entity)
            self.since = []

    def kept(self, entity: Any, change: Change, number: int) -> None:
        self.since.append((change, number))

    def back(self, entity: Any) -> Any:
        entity = self.decode(self.form)
        for change, number in self.since:
            change(entity, number)
        return entity


class Tracked(Nothing):
    """What Engram does: containers note how to take back a change, and the fields that are assigned are captured."""

    def __init__(self, cls: type[Entity]) -> None:
        self.undo = UndoLog()
        self.cls = cls
        assigned = {"impressions", "clicks"} if cls is Tweet else {"count"}
        self.guard = guard_for(cls, frozenset(assigned))
        assert self.guard.capture is not None
        self.capture = self.guard.capture

    def start(self, entity: Any) -> None:
        for name, shape in guard_for(self.cls, None).mutable:
            setattr(entity, name, adopt(getattr(entity, name), self.undo, shape))

    def before(self, entity: Any) -> None:
        self.captured = self.capture(entity)

    def kept(self, entity: Any, change: Change, number: int) -> None:
        if self.undo:
            self.undo.clear()

    def back(self, entity: Any) -> Any:
        self.undo.roll_back()
        self.guard.restore(entity, entity.key, self.captured)
        return entity


WAYS: dict[str, type[Nothing]] = {
    "no undo": Nothing,
    "tracked containers (chosen)": Tracked,
    f"encoded every {ENCODE_EVERY}, handled again": Journal,
    "containers copied before": CopyContainers,
    "encoded before": EncodeBefore,
    "deep copy before": DeepCopy,
}


class WithoutUndo(Image):
    """The same hot path, for handlers that never raise."""

    def _run(self, work: Iterable[tuple[int, Any, str]], handled: Handled, undo: UndoLog) -> None:
        plans, context = self._plans, self._context
        keep = handled.outcomes.append
        for index, command, key in work:
            home, entities, _, _, _, replies_none, encode_reply, handle = plans[type(command)]
            entity = entities.get(key)
            if entity is None:
                entity = home.cls(key=key)
                set_mark(entity, 0)
                home.keep(key, entity)
            context._index = index
            reply = handle(command, entity, context)
            outcome = DONE if reply is None and replies_none else encode_reply(reply)
            if context._effective:
                self._let_out(index, key, handled)
                context._keep_effects()
            if entity._round != home.round:
                set_mark(entity, home.round)
                home.dirty.append(key)
            keep(outcome)
        self.handled += len(handled.outcomes)


def measure() -> Result:
    result = Result(f"Undo: {COMMANDS:,} commands, {REPETITIONS} repetitions, microseconds per command")
    cases = {"small": (Tweet, impression_or_click, COMMANDS), "large": (Account, follow, COMMANDS // 20)}
    medians: dict[tuple[str, str, str], float] = {}
    for size, (cls, change, commands) in cases.items():
        for ending in ("kept", "taken back"):
            share = 0.0 if ending == "kept" else 1.0
            times: dict[str, list[float]] = {name: [] for name in WAYS}
            for _ in range(REPETITIONS):
                for name, way in WAYS.items():
                    slow = name.startswith("deep copy") or ending == "taken back"
                    count = max(commands // 10, 50) if slow else commands
                    times[name].append(_cost(way, cls, change, count, share))
            for name, values in times.items():
                row = Row.of(f"{size}, {ending}: {name}", values, "us")
                medians[size, ending, name] = row.median
                result.rows.append(row)
    chosen = "tracked containers (chosen)"
    guarded, bare = HotPath(Image), HotPath(WithoutUndo)
    collect_rarely()  # as every shard does
    for mix, clicks in {"impressions": 0.0, "clicks": 1.0, "both at random": CLICKS}.items():
        pairs = [_pair(guarded, bare, number, clicks) for number in range(PAIRS)]
        on = Row.of(f"hot path of a million tweets, {mix}: with undo", [on for on, _ in pairs], "us")
        off = Row.of(f"hot path of a million tweets, {mix}: without", [off for _, off in pairs], "us")
        result.rows += [on, off]
        share = round(statistics.median((on - off) / on for on, off in pairs), 3)
        result.aims.append(Aim(f"undo's share of the hot path, {mix}", "<= 0.10", share, share <= 0.10))
    growth = round(medians["large", "kept", chosen] / medians["small", "kept", chosen], 2)
    result.aims.append(Aim("cost on a large entity over that on a small one", "<= 2", growth, growth <= 2))
    return result


def _pair(guarded: HotPath, bare: HotPath, number: int, clicks: float) -> tuple[float, float]:
    """The same commands with undo and without, one right after the other, each first in every other pair."""
    if number % 2:
        off = bare.cost(number, clicks)
        return guarded.cost(number, clicks), off
    return guarded.cost(number, clicks), bare.cost(number, clicks)


class HotPath:
    """Decode, dedupe and handle batch records of impressions and clicks, in one image of a million tweets."""

    def __init__(self, image_type: Callable[[int, Codec], Image], tweets: int = TWEETS) -> None:
        self._image = image_type(0, Codec(app))
        self._sequence = 0
        for start in range(0, tweets, BATCH):
            self._image.handle(self._record([("impression", f"t{start + n}", {"user": "u"}) for n in range(BATCH)]))

    def cost(self, number: int, clicks: float) -> float:
        """Microseconds of processor time per command: what else the machine does is not in it."""
        commands = list(traffic(random.Random(number), COMMANDS, clicks))
        first = self._image.offset
        records = [
            self._record(commands[start : start + BATCH])._replace(offset=first + start // BATCH)
            for start in range(0, COMMANDS, BATCH)
        ]
        started = time.thread_time()
        for record in records:
            self._image.handle(record)
        return (time.thread_time() - started) / COMMANDS * 1e6

    def _record(self, commands: list[tuple[str, str, dict[str, str]]]) -> Record:
        envelopes = []
        for name, key, body in commands:
            self._sequence += 1
            session = f"s{self._sequence % SESSIONS}"
            envelopes.append(Envelope(name, 1, key, json.dumps(body).encode(), session, self._sequence))
        return Record(0, self._image.offset, Kind.COMMANDS, 0, encode_commands(envelopes, "bench"))


def _cost(way_type: type[Nothing], cls: type[Entity], change: Change, commands: int, rejected: float) -> float:
    way = way_type(cls)
    entity: Any = cls(key="k")
    if isinstance(entity, Account):
        entity.followers = {f"f{n}": n for n in range(LARGE)}
    if isinstance(way, Tracked):
        way.start(entity)
    dice = random.Random(3)
    fates = [dice.random() < rejected for _ in range(commands)]
    started = time.perf_counter()
    for number, fails in enumerate(fates):
        way.before(entity)
        change(entity, number)
        if fails:
            entity = way.back(entity)
        else:
            way.kept(entity, change, number)
    return (time.perf_counter() - started) / commands * 1e6
