"""What do the logs cost? Appends, reads, and the way of a command from its sender to the reply.

SQLite and Kafka, a real broker on loopback, side by side in one run. Command to reply: a shard in a process of its own,
the gateway's service without HTTP here, one command after the other.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from engram.clock import system_clock
from engram.codec.record import Envelope, Kind, encode_commands
from engram.dev.kafka import Brokers
from engram.log.base import Entry, Log
from engram.log.open import open_log
from engram.serving.registry import Registry
from engram.serving.service import Service

from bench.result import Aim, Result, Row
from bench.workload import SESSIONS, Impression, app, traffic

REPETITIONS = 5
BATCH = 1000
BATCHES = 300
SINGLES = 1000
ROUND_TRIPS = 1000
_READY_S = 30.0

# A shard of the benchmark's app, as Spark's task starts it.
_SHARD = """
import sys
from bench.workload import app
from engram.clock import system_clock
from engram.log.open import open_log
from engram.serving.transport import ZmqTransport
from engram.shard.policy import Policy
from engram.shard.shard import Shard
from engram.snapshots.memory import MemorySnapshots

log = open_log(sys.argv[1], app.name)
Shard(app, number=0, partitions=range(log.partitions), log=log, store=MemorySnapshots(app.name), clock=system_clock,
      transport=ZmqTransport(sys.argv[2]), owner="bench", policy=Policy(snapshot_every=10**12), background=True).run()
"""


def measure() -> Result:
    result = Result(f"Logs: {BATCHES} records of {BATCH} commands, {SINGLES} of one; {REPETITIONS} repetitions")
    with tempfile.TemporaryDirectory(prefix="engram-bench-") as folder, Brokers() as brokers:
        logs = {"sqlite": f"sqlite:{folder}/log.db", "kafka-python": brokers.url("bench")}
        reads: dict[str, float] = {}
        acks: dict[str, float] = {}
        replies: dict[str, float] = {}
        for name, url in logs.items():
            log = open_log(url, app.name, partitions=1, create=True)
            batches, singles = list(_entries(BATCHES, BATCH)), list(_entries(SINGLES, 1))
            appended, fetched = _rates(log, batches, BATCHES * BATCH)
            result.rows += [
                Row.of(f"{name}: append, {BATCH} commands a record", appended, "commands/s"),
                Row.of(f"{name}: read, {BATCH} commands a record", fetched, "commands/s"),
            ]
            reads[name] = result.rows[-1].median
            appended, fetched = _rates(log, singles, SINGLES)
            result.rows.append(Row.of(f"{name}: read, one command a record", fetched, "commands/s"))
            times = [_seconds(partial(log.append, [entry])) for entry in singles]
            acks[name] = _latency(result, f"{name}: acknowledgement of a single append", times)
            log.close()
        for name, url in logs.items():
            replies[name] = _latency(result, f"{name}: command to reply", asyncio.run(_round_trips(url)))
    read = reads["kafka-python"]
    ratio = round(replies["kafka-python"] / acks["kafka-python"], 2)
    result.aims += [
        Aim("commands/s that a shard reads through kafka-python, batch records", ">= 1000000", read, read >= 1_000_000),
        Aim("command to reply on Kafka over the acknowledgement of an append, p50", "<= 3", ratio, ratio <= 3),
    ]
    return result


def _entries(records: int, commands: int) -> Iterator[Entry]:
    load = traffic(random.Random(5), records * commands)
    sequence = 0
    for _ in range(records):
        envelopes = []
        for _ in range(commands):
            name, key, body = next(load)
            sequence += 1
            session = f"s{sequence % SESSIONS}"
            envelopes.append(Envelope(name, 1, key, json.dumps(body).encode(), session, sequence))
        yield Entry(0, Kind.COMMANDS, system_clock(), encode_commands(envelopes, "bench"))


def _rates(log: Log, entries: list[Entry], commands: int) -> tuple[list[float], list[float]]:
    appended, fetched = [], []
    for _ in range(REPETITIONS):
        start = log.end(0)
        appended.append(commands / _seconds(partial(log.append, entries)))
        fetched.append(commands / _seconds(partial(_read, log, start, log.end(0))))
    return appended, fetched


def _read(log: Log, offset: int, end: int) -> None:
    while offset < end:
        offset = log.read(0, offset, limit=256)[-1].offset + 1


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _latency(result: Result, case: str, seconds: list[float]) -> float:
    """Adds rows for half and for 99 of 100; returns the first."""
    thousandths = [1000 * value for value in seconds]
    cuts = statistics.quantiles(thousandths, n=100)
    result.rows.append(Row.of(f"{case}, p50", thousandths, "ms"))
    result.rows.append(Row.of(f"{case}, p99", [cuts[98]], "ms"))
    return statistics.median(thousandths)


async def _round_trips(url: str) -> list[float]:
    registry = Registry()
    registry.start()
    log = open_log(url, app.name)
    service = Service(app, log, registry, clock=system_clock)
    with _shard(url, registry.address):
        if not await registry.wait_until(lambda: registry.lookup(0) is not None, _READY_S):
            raise SystemExit("The shard did not start.")
        times = []
        for number in range(ROUND_TRIPS + 100):
            started = time.perf_counter()
            await service.send(f"t{number}", Impression(user="u"), seconds=_READY_S)
            times.append(time.perf_counter() - started)
        await registry.stop_shards(clean=False)
    await service.close()
    registry.close()
    log.close()
    return times[100:]  # without the first, in which everything is new


@contextmanager
def _shard(url: str, registry: str) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", _SHARD, url, registry], cwd=Path(__file__).parent.parent)
    try:
        yield
        process.wait(_READY_S)
    finally:
        process.kill()
        process.wait()
