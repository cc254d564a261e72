"""What do effects cost? A command that sends a message, schedules a timer or emits an event, beside a plain one.

Two real shards over one SQLite log, in one process, batch records. End to end: from a client's encoded commands, which
are made into records and appended, until every command and every message is handled and every effect is in the log.
The message goes from an entity of one shard to one of the other.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from engram import App, Command, Context, Entity, Event
from engram.clock import system_clock
from engram.codec.record import Envelope, Kind, encode_commands
from engram.log.base import Entry
from engram.log.partitioner import partition_of
from engram.log.sqlite import SqliteLog
from engram.shard.garbage import collect_rarely
from engram.shard.policy import Policy
from engram.shard.shard import Shard
from engram.snapshots.memory import MemorySnapshots
from engram.testing.silence import Silence

from bench.result import Aim, Result, Row
from bench.workload import BATCH

COMMANDS = 20_000
REPETITIONS = 7
ENTITIES = 1000
TIMERS = 1_000_000
_FAR = timedelta(days=365)


@dataclass(slots=True, kw_only=True)
class Counter(Entity, name="counter"):
    count: int = 0
    received: int = 0


class Happened(Event, name="happened"):
    count: int


class Receive(Command[Counter, None], name="receive"):
    def handle(self, counter: Counter, ctx: Context) -> None:
        counter.received += 1


class Plain(Command[Counter, None], name="plain"):
    to: str  # all of these have one, so that they differ by nothing but what they do

    def handle(self, counter: Counter, ctx: Context) -> None:
        counter.count += 1


class Sends(Command[Counter, None], name="sends"):
    to: str

    def handle(self, counter: Counter, ctx: Context) -> None:
        counter.count += 1
        ctx.send(self.to, Receive())


class Schedules(Command[Counter, None], name="schedules"):
    to: str

    def handle(self, counter: Counter, ctx: Context) -> None:
        counter.count += 1
        ctx.schedule(_FAR, Receive())


class Emits(Command[Counter, None], name="emits"):
    to: str

    def handle(self, counter: Counter, ctx: Context) -> None:
        counter.count += 1
        ctx.emit(Happened(count=counter.count))


app = App("effects", commands=[Plain, Sends, Schedules, Emits, Receive], events=[Happened])


def measure() -> Result:
    keys: dict[int, list[str]] = {0: [], 1: []}
    for number in range(2 * ENTITIES):
        keys[partition_of(f"k{number}", 2)].append(f"k{number}")
    others = keys[1]
    cases: dict[str, Callable[[int], Command[Any, Any]]] = {
        "plain": lambda n: Plain(to=others[n % len(others)]),
        "sends a message to the other shard": lambda n: Sends(to=others[n % len(others)]),
        "schedules a timer": lambda n: Schedules(to=others[n % len(others)]),
        "emits an event": lambda n: Emits(to=others[n % len(others)]),
    }
    with tempfile.TemporaryDirectory(prefix="engram-bench-") as folder:
        pair = _Pair(Path(folder) / "log.db")
        collect_rarely()
        costs: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(REPETITIONS):
            for name, make in cases.items():
                costs[name].append(pair.cost([(keys[0][n % len(keys[0])], make(n)) for n in range(COMMANDS)]))
        singles: dict[str, list[float]] = {"plain": [], "sends a message to the other shard": []}
        for _ in range(REPETITIONS):
            for name, of_case in singles.items():
                few = [(keys[0][n % len(keys[0])], cases[name](n)) for n in range(COMMANDS // 10)]
                of_case.append(pair.cost(few, batch=1))
        crowded: dict[str, list[float]] = {"plain": [], "schedules a timer": []}
        work = {name: [(keys[0][n % len(keys[0])], cases[name](n)) for n in range(COMMANDS)] for name in crowded}
        while pair.timers() < TIMERS:
            pair.cost(work["schedules a timer"])
        alone = _Pair(Path(folder) / "alone.db")
        without = []
        for _ in range(REPETITIONS):
            without.append(alone.cost(work["plain"]))
            for name, of_case in crowded.items():
                of_case.append(pair.cost(work[name]))
        alone.close()
        pair.close()
    result = Result(f"Effects: {REPETITIONS} x {COMMANDS:,} commands, two shards, one SQLite log, {BATCH} a record")
    result.rows += [
        Row.of(f"a command that {name}" if name != "plain" else "a plain command", c, "us") for name, c in costs.items()
    ]
    result.rows += [Row.of(f"one command a record: {name}", c, "us") for name, c in singles.items()]
    result.rows += [Row.of(f"the same with {TIMERS:,} timers pending: {name}", c, "us") for name, c in crowded.items()]
    sending = statistics.median(costs["sends a message to the other shard"])
    result.rows.append(Row("messages between two shards", round(1e6 / sending), "messages/s", result.rows[1].spread))
    growth = round(statistics.median(on / off for on, off in zip(crowded["plain"], without, strict=True)), 2)
    result.aims.append(
        Aim(f"a plain command with {TIMERS:,} timers pending, over without", "<= 1.2", growth, growth <= 1.2)
    )
    for how, of in {f"{BATCH} commands a record": costs, "one command a record": singles}.items():
        pairs = zip(of["sends a message to the other shard"], of["plain"], strict=True)
        ratio = round(statistics.median(sends / plain for sends, plain in pairs), 2)
        result.aims.append(Aim(f"a command that sends one message, over plain ones, {how}", "<= 3", ratio, ratio <= 3))
    return result


class _Pair:
    """Two shards of one partition each."""

    def __init__(self, path: Path) -> None:
        self._log = SqliteLog(path, app.name, partitions=2, create=True)
        self._shards = [self._shard(path, number) for number in range(2)]
        self._sequence = 0

    def _shard(self, path: Path, number: int) -> Shard:
        shard = Shard(
            app,
            number=number,
            partitions=[number],
            log=SqliteLog(path, app.name),
            store=MemorySnapshots(app.name),
            transport=Silence(),
            clock=system_clock,
            owner=f"bench{number}",
            policy=Policy(snapshot_every=10**12),
        )
        shard.recover()
        return shard

    def cost(self, commands: list[tuple[str, Command[Any, Any]]], *, batch: int = BATCH) -> float:
        """Microseconds per command."""
        envelopes = []
        for key, command in commands:
            self._sequence += 1
            name = command.__engram__.name or ""
            envelopes.append(Envelope(name, 1, key, command.model_dump_json().encode(), "bench", self._sequence))
        started = time.perf_counter()
        batches = [envelopes[start : start + batch] for start in range(0, len(envelopes), batch)]
        self._log.append([Entry(0, Kind.COMMANDS, system_clock(), encode_commands(b, "bench")) for b in batches])
        while not self._at_rest():
            for shard in self._shards:
                shard.step(wait=False)
        return (time.perf_counter() - started) / len(commands) * 1e6

    def timers(self) -> int:
        """How many wait in the first shard."""
        return len(self._shards[0].owned[0].image.timers)

    def _at_rest(self) -> bool:
        return all(
            shard.owned[number].image.offset == self._log.end(number) and not shard._outboxes[number].pending
            for number, shard in enumerate(self._shards)
        )

    def close(self) -> None:
        for shard in self._shards:
            shard.close()
        self._log.close()
