"""What does it cost to have many entities, or large ones?

A shard over a SQLite log handles the same number of commands with ten thousand to ten million tweets in memory, as far
as memory allows, beside a bare loop with a dict of slotted objects; each in a process of its own, which says by how
much its memory has grown. And with larger entities: shelves of so many urls, of which each command changes one. And in
one shard to four, with snapshots by the default policy, which a round may have more or fewer of.
"""

from __future__ import annotations

import gc
import itertools
import json
import multiprocessing
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
from engram import App, Command, Context, Entity
from engram.clock import system_clock
from engram.codec.record import Envelope, Kind, encode_commands
from engram.log.base import Entry
from engram.log.sqlite import SqliteLog
from engram.shard.garbage import collect_rarely
from engram.shard.policy import Policy
from engram.shard.shard import Shard
from engram.snapshots.memory import MemorySnapshots
from engram.testing.silence import Silence

from bench.quiet import errors_only
from bench.result import Aim, Result, Row
from bench.shards import shards
from bench.workload import BATCH, Bare, Sender, Sent, app, bare_texts, every_tweet, traffic

COUNTS = (10_000, 100_000, 1_000_000, 10_000_000)
SIZES = (1, 100, 10_000)
SHARDS = (1, 2, 4)
TWEETS_OF_SHARDS = 100_000
ROUND_OF_SHARDS = 400_000
MEASURED = 100_000
ROUNDS = 3
# About twice what a tweet takes, for what is on its way. A count that would take more than this, or than half of what
# is free, is left out.
_BYTES_OF_ONE = 500
_MOST_BYTES = 8 * 2**30
_AT_ONCE = 50_000
_DEADLINE_S = 150.0


def measure() -> Result:
    result = Result(f"Scale: {ROUNDS} x {MEASURED:,} commands, SQLite, {BATCH} commands a record")
    room = min(_MOST_BYTES, psutil.virtual_memory().available // 2)
    ratios, most = [], 0
    for count in COUNTS:
        if count * _BYTES_OF_ONE > room:
            print(f"  {count:,} tweets left out: {room / 2**30:.1f} GB are not enough", flush=True)
            continue
        print(f"  {count:,} tweets ...", flush=True)
        found = _in_a_process(_engram, count), _in_a_process(_bare, count)
        if found[0] is None or found[1] is None:
            print(f"  {count:,} tweets left out: they took longer than {_DEADLINE_S:.0f} s", flush=True)
            continue
        (rates, grown), (bare_rates, bare_grown) = found
        most = count
        ratios.append((sum(rates) / sum(bare_rates), grown / bare_grown))
        result.rows += [
            Row.of(f"{count:>10,} tweets  engram", rates, "commands/s"),
            Row.of(f"{count:>10,} tweets  bare loop", bare_rates, "commands/s"),
            Row.of(f"{count:>10,} tweets  engram, memory of a tweet", [grown / count], "bytes"),
            Row.of(f"{count:>10,} tweets  bare slotted objects, memory of a tweet", [bare_grown / count], "bytes"),
        ]
    for size in SIZES:
        of_size = _in_a_process(_sized, size)
        if of_size is not None:
            case = f"engram, entities of {size:,} urls, one changed by a command"
            result.rows.append(Row.of(case, of_size[0], "commands/s"))
    for number in SHARDS:
        case = f"engram, {TWEETS_OF_SHARDS:,} tweets in {number} shard{'s' * (number > 1)}"
        result.rows.append(Row.of(case, _of_shards(number), "commands/s"))
    memory = round(ratios[-1][1], 2)
    kept = round(ratios[-1][0] / ratios[0][0], 2)
    result.aims += [
        Aim(f"memory of a tweet over bare slotted objects, {most:,} tweets", "<= 1.5", memory, memory <= 1.5),
        Aim(f"rate over the bare loop at {most:,} tweets, over that at {COUNTS[0]:,}", ">= 0.8", kept, kept >= 0.8),
    ]
    return result


def _in_a_process(work: Any, number: int) -> tuple[list[float], float] | None:
    """What it sends; None if that takes too long."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=work, args=(there, number))
    process.start()
    if not here.poll(_DEADLINE_S):
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        process.kill()
        return None
    found: tuple[list[float], float] = here.recv()
    process.join()
    return found


def _resident() -> int:
    gc.collect()
    return psutil.Process().memory_info().rss


def _slices(count: int) -> Iterator[list[Sent]]:
    every = every_tweet(count)
    while some := list(itertools.islice(every, _AT_ONCE)):
        yield some


def _bare(line: Connection, count: int) -> None:
    bare = Bare()
    before = _resident()
    for some in _slices(count):
        bare.handle(bare_texts(some))
    del some
    collect_rarely()
    grown = _resident() - before
    rates = []
    for number in range(ROUNDS):
        texts = bare_texts(list(traffic(random.Random(number), MEASURED, tweets=count)))
        rates.append(_rate(partial(bare.handle, texts)))
    line.send((rates, grown))


def _engram(line: Connection, count: int) -> None:
    errors_only()
    with tempfile.TemporaryDirectory(prefix="engram-bench-") as folder, closing(_Shard(app, Path(folder))) as shard:
        before = _resident()
        # Another process writes the log: what it needs for that is not the shard's.
        writer = multiprocessing.get_context("spawn").Process(target=_fill, args=(Path(folder), count))
        writer.start()
        while writer.is_alive():
            shard.drain()
        writer.join()
        shard.drain()
        collect_rarely()
        grown = _resident() - before
        rates, sender = [], Sender(name="later")
        for number in range(ROUNDS):
            shard.append(sender.entries(list(traffic(random.Random(number), MEASURED, tweets=count))))
            rates.append(_rate(shard.drain))
        line.send((rates, grown))


def _fill(folder: Path, count: int) -> None:
    sender = Sender()
    with closing(SqliteLog(folder / "log.db", app.name)) as log:
        for some in _slices(count):
            log.append(sender.entries(some))


def _sized(line: Connection, size: int) -> None:
    errors_only()
    shelves = min(max(1_000_000 // size, 10), 1000)
    sequence = itertools.count(1)

    def entries(commands: Sequence[tuple[str, str, dict[str, int]]]) -> list[Entry]:
        made = [Envelope(n, 1, key, json.dumps(body).encode(), "s", next(sequence)) for n, key, body in commands]
        return [
            Entry(0, Kind.COMMANDS, system_clock(), encode_commands(made[start : start + BATCH], "bench"))
            for start in range(0, len(made), BATCH)
        ]

    with tempfile.TemporaryDirectory(prefix="engram-bench-") as folder, closing(_Shard(sized, Path(folder))) as shard:
        shard.append(entries([("fill", f"s{number}", {"urls": size}) for number in range(shelves)]))
        shard.drain()
        collect_rarely()
        rng, rates = random.Random(1), []
        for _ in range(ROUNDS):
            chosen = [(f"s{rng.randrange(shelves)}", rng.randrange(size)) for _ in range(MEASURED // 2)]
            shard.append(entries([("put", key, {"place": place}) for key, place in chosen]))
            rates.append(_rate(shard.drain, MEASURED // 2))
        line.send((rates, 0.0))


def _of_shards(count: int) -> list[float]:
    partitions = max(SHARDS)
    with tempfile.TemporaryDirectory(prefix="engram-bench-") as folder:
        path = Path(folder) / "log.db"
        with closing(SqliteLog(path, app.name, partitions=partitions, create=True)) as log:
            sender = Sender(partitions)
            log.append(sender.entries(list(every_tweet(TWEETS_OF_SHARDS))))
            rates = []
            with shards(f"sqlite:{path}", count, Path(folder) / "snapshots") as running:
                for number in range(ROUNDS):
                    rng = random.Random(number)
                    log.append(sender.entries(list(traffic(rng, ROUND_OF_SHARDS, tweets=TWEETS_OF_SHARDS))))
                    rates.append(ROUND_OF_SHARDS / running.seconds())
    return rates


def _rate(work: Any, commands: int = MEASURED) -> float:
    started = time.perf_counter()
    work()
    return commands / (time.perf_counter() - started)


class _Shard:
    """That owns the one partition of a log, and takes no snapshots meanwhile."""

    def __init__(self, of: App, folder: Path) -> None:
        self._log = SqliteLog(folder / "log.db", of.name, partitions=1, create=True)
        self._shard = Shard(
            of,
            number=0,
            partitions=[0],
            log=self._log,
            store=MemorySnapshots(of.name),
            transport=Silence(),
            clock=system_clock,
            owner="bench",
            policy=Policy(snapshot_every=10**12),
        )
        self._shard.recover()

    def append(self, entries: list[Entry]) -> None:
        self._log.append(entries)

    def drain(self) -> None:
        end = self._log.end(0)
        while self._shard.owned[0].image.offset < end:
            self._shard.step(wait=False)

    def close(self) -> None:
        self._shard.close()


@dataclass(slots=True, kw_only=True)
class Shelf(Entity, name="shelf"):
    urls: list[str] = field(default_factory=list)


class Fill(Command[Shelf, None], name="fill"):
    urls: int

    def handle(self, shelf: Shelf, ctx: Context) -> None:
        shelf.urls = [f"https://example.org/{number}" for number in range(self.urls)]


class Put(Command[Shelf, None], name="put"):
    place: int

    def handle(self, shelf: Shelf, ctx: Context) -> None:
        shelf.urls[self.place] = "https://example.org/other"


sized = App("shelves", commands=[Fill, Put])
