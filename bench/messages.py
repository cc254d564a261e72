"""What do effects cost? A command that sends a message, schedules a timer or emits an event, beside a plain one.

Two real shards over one SQLite log, in one process, batch records. End to end: until every command and every message
is handled and every effect is in the log. The message goes from an entity of one shard to one of the other.
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
from engram.shard.shard import Policy, Shard
from engram.snapshots.memory import MemorySnapshots

from bench.hotpath import BATCH, Silence
from bench.result import Aim, Result, Row

COMMANDS = 20_000
REPETITIONS = 7
ENTITIES = 1000
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
    def handle(self, counter: Counter, ctx: Context) -> None:
        counter.count += 1


class Sends(Command[Counter, None], name="sends"):
    to: str

    def handle(self, counter: Counter, ctx: Context) -> None:
        counter.count += 1
        ctx.send(self.to, Receive())


class Schedules(Command[Counter, None], name="schedules"):
    def handle(self, counter: Counter, ctx: Context) -> None:
        counter.count += 1
        ctx.schedule(_FAR, Receive())


class Emits(Command[Counter, None], name="emits"):
    def handle(self, counter: Counter, ctx: Context) -> None:
        counter.count += 1
        ctx.emit(Happened(count=counter.count))


app = App("effects", commands=[Plain, Sends, Schedules, Emits, Receive], events=[Happened])


def measure() -> Result:
    keys: dict[int, list[str]] = {0: [], 1: []}
    for number in range(2 * ENTITIES):
        keys[partition_of(f"k{number}", 2)].append(f"k{number}")
    cases: dict[str, Callable[[int], Command[Any, Any]]] = {
        "plain": lambda _: Plain(),
        "sends a message to the other shard": lambda n: Sends(to=keys[1][n % len(keys[1])]),
        "schedules a timer": lambda _: Schedules(),
        "emits an event": lambda _: Emits(),
    }
    with tempfile.TemporaryDirectory(prefix="engram-bench-") as folder:
        pair = _Pair(Path(folder) / "log.db")
        collect_rarely()
        costs: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(REPETITIONS):
            for name, make in cases.items():
                costs[name].append(pair.cost([(keys[0][n % len(keys[0])], make(n)) for n in range(COMMANDS)]))
        pair.close()
    result = Result(f"Effects: {REPETITIONS} x {COMMANDS:,} commands, two shards, one SQLite log, {BATCH} a record")
    result.rows += [
        Row.of(f"a command that {name}" if name != "plain" else "a plain command", c, "us") for name, c in costs.items()
    ]
    sending = statistics.median(costs["sends a message to the other shard"])
    result.rows.append(Row("messages between two shards", round(1e6 / sending), "messages/s", result.rows[1].spread))
    ratio = round(
        statistics.median(
            s / p for s, p in zip(costs["sends a message to the other shard"], costs["plain"], strict=True)
        ),
        2,
    )
    result.aims.append(Aim("a command that sends one message, over plain ones", "<= 3", ratio, ratio <= 3))
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

    def cost(self, commands: list[tuple[str, Command[Any, Any]]]) -> float:
        """Microseconds per command."""
        entries = []
        for start in range(0, len(commands), BATCH):
            envelopes = []
            for key, command in commands[start : start + BATCH]:
                self._sequence += 1
                name = command.__engram__.name or ""
                envelopes.append(Envelope(name, 1, key, command.model_dump_json().encode(), "bench", self._sequence))
            entries.append(Entry(0, Kind.COMMANDS, system_clock(), encode_commands(envelopes, "bench")))
        self._log.append(entries)
        started = time.perf_counter()
        while not self._at_rest():
            for shard in self._shards:
                shard.step(wait=False)
        return (time.perf_counter() - started) / len(commands) * 1e6

    def _at_rest(self) -> bool:
        return all(
            shard.owned[number].image.offset == self._log.end(number) and not shard._outboxes[number].pending
            for number, shard in enumerate(self._shards)
        )

    def close(self) -> None:
        for shard in self._shards:
            shard.close()
        self._log.close()
