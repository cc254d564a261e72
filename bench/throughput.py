"""How many commands a second, through the whole path with every guarantee on, against what one would use instead?

Engram: shards in processes of their own over a real log, with decode, dedupe, undo, replies, epochs, and snapshots by
the default policy meanwhile. Batch records, as a gateway under load writes them, are in the log already: reading them
is part of it, appending is not (see `logs`, `pipeline`). The rivals get their JSON from memory.

A snapshot of a million tweets takes longer than a round. So with the most keys there are also **cycles** without a
break: from where every partition has had a snapshot to where every one has had the next, with the pause that the policy
makes between them; all that a snapshot costs is in each. That is what counts there, with the processor's time that it
took: of the shards' own threads, and of those beside them. Between the laps of one shard the bare loop handles the same
commands: after fifty million each tweet has more urls, in more places of memory, than after two million, and both are
slower for that. Two shards are fed apart there: the log has always something for each, so that none waits for the other
one's snapshots. The rounds before are those in which the first snapshot, of everything, is taken and written.

Two bare loops in processes of their own, each with half the keys, tell what two cores of this machine give at all.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from engram.dev.kafka import Brokers
from engram.log.base import Entry, Log
from engram.log.open import open_log

from bench.laps import Laps
from bench.redis_server import redis_server
from bench.result import Aim, Result, Row
from bench.rivals import Handle, eventsourcing_library, write_back, write_through, write_through_packed
from bench.shards import Shards, Work, shards
from bench.side_by_side import side_by_side
from bench.spark_rivals import spark, transform_with_state
from bench.workload import Bare, Sender, Sent, app, bare_texts, every_tweet, traffic

KEYS = (100, 10_000, 1_000_000)
MEASURED = 400_000
SLOW = 2_000  # commands for those who take a thousandth of a second for one
REPETITIONS = 5
SPARK_REPETITIONS = 2  # each takes seconds, whatever is in it
PARTITIONS = 4
CYCLES = 3
LONGEST = 600  # laps of all cycles: nobody waits for a snapshot that does not come
_RECORDS_AT_ONCE = 200
_CYCLE = ", over a cycle"
_BARE = "bare loop"
_PAIR = f"{_BARE}, 2 processes"

Rates = dict[str, list[float]]
Worked = dict[str, list[Work]]


def measure() -> Result:
    result = Result(
        f"Throughput: impressions and clicks, {REPETITIONS} x {MEASURED:,} commands, {PARTITIONS} partitions"
    )
    ratios: dict[int, float] = {}
    with Brokers() as brokers, spark() as session:
        for keys in KEYS:
            print(f"  {keys:,} keys ...", flush=True)
            rates, worked = _rates(keys, brokers, session)
            for case, values in rates.items():
                result.rows.append(Row.of(f"{keys:>9,} keys  {case}", values, "commands/s"))
            for case, cycles in worked.items():
                own = [100 * each.own / each.seconds for each in cycles]
                beside = [100 * each.beside / each.seconds for each in cycles]
                result.rows.append(Row.of(f"{keys:>9,} keys  {case}, shards' own threads", own, "% of a core"))
                result.rows.append(Row.of(f"{keys:>9,} keys  {case}, threads beside them", beside, "% of a core"))
            ratios[keys] = _ratio(_steady(rates, 1), rates.get(f"{_BARE}{_CYCLE}", rates[_BARE]))
    _add_aims(result, rates, ratios)
    return result


def _rates(keys: int, brokers: Brokers, session: Any) -> tuple[Rates, Worked]:
    rng = random.Random(7)
    rounds = [list(traffic(rng, MEASURED, tweets=keys)) for _ in range(REPETITIONS)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="engram-bench-")))
        rivals = list(_rivals(keys, stack, folder))
        ours = [
            (case, log, sender, stack.enter_context(shards(url, count, folder / case)))
            for case, url, count in _ours(keys, folder, brokers)
            for log, sender in [_filled(url, keys, stack)]
        ]
        pair = stack.enter_context(side_by_side(2))
        pair.seconds(list(every_tweet(keys)))
        rates: Rates = {}
        worked: Worked = {}
        for commands in rounds:
            texts = bare_texts(commands)
            for case, handle, count in rivals:
                rates.setdefault(case, []).append(_rate_of(handle, texts[:count]))
            rates.setdefault(_PAIR, []).append(len(commands) / pair.seconds(commands))
            for case, log, sender, running in ours:
                _append(log, sender.entries(commands))
                rates.setdefault(case, []).append(len(commands) / running.seconds())
        if keys == KEYS[-1]:
            laps = Laps([Sender(PARTITIONS).entries(commands) for commands in rounds])
            beside: Iterator[float] = _seconds_of(rivals[0][1], rounds)
            for case, log, _, running in ours:
                print(f"  {case}, {CYCLES} cycles ...", flush=True)
                cycles, bare = _over_cycles(log, running, laps, beside)
                worked[f"{case}{_CYCLE}"] = cycles
                rates[f"{case}{_CYCLE}"] = [each.commands / each.seconds for each in cycles]
                rates.setdefault(f"{_BARE}{_CYCLE}", bare)
                beside = itertools.repeat(math.inf)  # one is compared with it
        for commands in rounds[:SPARK_REPETITIONS]:
            found = transform_with_state(session, bare_texts(commands[:SLOW]))
            rates.setdefault("Spark, transformWithStateInPandas", []).append(found)
    return rates, worked


def _ours(keys: int, folder: Path, brokers: Brokers) -> Iterator[tuple[str, str, int]]:
    for number in (1, 2):
        yield f"engram, SQLite, {_many(number)}", f"sqlite:{folder}/{number}.db", number
    for number in (1, 2):
        yield f"engram, Kafka, {_many(number)}", brokers.url(f"throughput-{keys}-{number}"), number


def _many(shards: int) -> str:
    return "1 shard" if shards == 1 else f"{shards} shards"


def _filled(url: str, keys: int, stack: ExitStack) -> tuple[Log, Sender]:
    log = stack.enter_context(closing(open_log(url, app.name, partitions=PARTITIONS, create=True)))
    sender = Sender(PARTITIONS)
    _append(log, sender.entries(list(every_tweet(keys))))
    return log, sender


def _append(log: Log, entries: Sequence[Entry]) -> None:
    for start in range(0, len(entries), _RECORDS_AT_ONCE):
        log.append(entries[start : start + _RECORDS_AT_ONCE])


def _over_cycles(log: Log, running: Shards, laps: Laps, beside: Iterator[float]) -> tuple[list[Work], list[float]]:
    """What they have done, each time from one snapshot of every partition to the next, and the rate of who handles the
    same laps `beside` them, in so many seconds each. Not from the first snapshot: what that took of the shard's time is
    told by the first commands, which are slower than those that come."""
    cycles: list[Work] = []
    rates: list[float] = []
    cycle, seconds = Work(), []
    had = 0
    for _ in range(LONGEST):
        _append(log, laps.next())
        cycle += running.until_one_is_done()
        seconds.append(next(beside))
        if running.snapshots > max(had, 1):
            if had:
                cycles.append(cycle)
                rates.append(len(seconds) * MEASURED / sum(seconds))
            cycle, seconds, had = Work(), [], running.snapshots
        if len(cycles) == CYCLES:
            return cycles, rates
    raise SystemExit(f"No {CYCLES + 2} snapshots of every partition within {LONGEST * MEASURED:,} commands.")


def _rivals(keys: int, stack: ExitStack, folder: Path) -> Iterator[tuple[str, Handle, int]]:
    """Each with a name, and how many commands it is given at a time."""
    bare = Bare()
    bare.handle(bare_texts(list(every_tweet(keys))))
    yield _BARE, bare.handle, MEASURED
    for case, make in (
        ("Redis write-through, redis-py", write_through),
        ("Redis write-through, hand-packed", write_through_packed),
        ("Redis write-back every second, redis-py", write_back),
    ):
        client = stack.enter_context(redis_server())
        if client is not None:
            yield case, make(client), MEASURED // 4
    memory = {"PERSISTENCE_MODULE": "eventsourcing.popo"}
    yield "eventsourcing library, in memory", eventsourcing_library(memory), SLOW
    sqlite = {"PERSISTENCE_MODULE": "eventsourcing.sqlite", "SQLITE_DBNAME": str(folder / "rival.db")}
    yield "eventsourcing library, SQLite", eventsourcing_library(sqlite), SLOW


def _seconds_of(handle: Handle, rounds: Sequence[Sequence[Sent]]) -> Iterator[float]:
    """Lap after lap, for as long as somebody asks."""
    for texts in itertools.cycle([bare_texts(commands) for commands in rounds]):
        yield len(texts) / _rate_of(handle, texts)


def _rate_of(handle: Handle, texts: list[bytes]) -> float:
    started = time.perf_counter()
    handle(texts)
    return len(texts) / (time.perf_counter() - started)


def _steady(rates: Rates, shards: int) -> list[float]:
    case = f"engram, SQLite, {_many(shards)}"
    return rates.get(f"{case}{_CYCLE}", rates[case])


def _ratio(ours: list[float], theirs: list[float]) -> float:
    """Round by round: what else the machine does changes from one round to the next, less within one. A cycle is
    longer than all rounds together, and is compared with the median of them."""
    if len(ours) != len(theirs):
        return round(statistics.median(ours) / statistics.median(theirs), 3)
    return round(statistics.median(a / b for a, b in zip(ours, theirs, strict=True)), 3)


def _add_aims(result: Result, most: Rates, ratios: dict[int, float]) -> None:
    """`most` are the rates at the most keys."""
    few, many = ratios[KEYS[0]], ratios[KEYS[-1]]
    one, two = _steady(most, 1), _steady(most, 2)
    result.aims += [
        Aim(f"one shard over the bare loop, {KEYS[-1]:,} keys", ">= 0.5", many, many >= 0.5),
        Aim("that ratio over the one at 100 keys", ">= 0.8", round(many / few, 2), many / few >= 0.8),
        Aim("two shards over one", ">= 1.8", _ratio(two, one), _ratio(two, one) >= 1.8),
    ]
    for case, wanted in (("redis-py", 4.0), ("hand-packed", 1.0)):
        rival = most.get(f"Redis write-through, {case}")
        if rival is not None:
            times = _ratio(one, rival)
            result.aims.append(
                Aim(f"one shard over Redis write-through, {case}", f">= {wanted:g}", times, times >= wanted)
            )
