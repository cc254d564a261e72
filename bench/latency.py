"""How long from a command to its reply, while commands come at a steady rate?

Open loop: a command is sent when its time has come, whether others are still waiting, and its latency counts from that
time, so a pause is seen by all that should have come in it. The gateway's service without HTTP, a shard in a process of
its own, everything on. The maximum is what 256 senders get through that wait for their replies. Beside it, what is hard
to go below: a round trip to Redis and an fsync, one after the other and at the slowest rate (what has slept takes
longer); what a record takes through Kafka by a client in C; and a micro-batch of Spark's.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

import redis
import uvloop
from engram.dev.kafka import Brokers
from engram.model.command import Command
from engram.serving.service import Service

from bench.kafka_alone import through_kafka
from bench.redis_server import redis_server
from bench.result import Aim, Result, Row
from bench.served import served
from bench.spark_rivals import micro_batches, spark
from bench.workload import Click, Impression, Tweet, app

TWEETS = 10_000
# Each with a new shard: on which processors the kernel puts whom differs from one start to the next, by a tenth.
REPETITIONS = 5
SECONDS = {100: 4.0, 1000: 3.0}
HALF_SECONDS = 3.0
SENDERS = 256
ROUND_TRIPS = 2000
# SQLite's journal grows to a thousand pages, and is written over from then on: a file that grows takes longer.
WARM_UP = 1500
# How often at a time and with which pause in between: one look at what is hard to go below.
_PACES = {"one after the other": (ROUND_TRIPS // 8, 0.0), "at 100/s": (100, 0.01)}
_LOGS = ("SQLite", "Kafka")
_ONE_BY_ONE_LOGGED = "one after the other, until it is logged"
_ONE_BY_ONE_REPLY = "one after the other, until its reply"
_REPLY_S = 30.0
_UNIT = "ms"
# Up to this rate the pacer wakes for each command; above, every so often for all that are due: to wake up takes time of
# what is measured. What is late by that counts as latency all the same.
_ONE_BY_ONE = 1000
_PAUSE_S = 0.001
_PAGE = 4096
_PAGES = 1000


Way = Callable[[str, Command[Tweet, None]], Awaitable[object]]


def measure() -> Result:
    result = Result(f"Latency: command to reply in an open loop, {TWEETS:,} tweets, one shard, {REPETITIONS} starts")
    found: dict[str, _Found] = {name: _Found() for name in _LOGS}
    with _floor() as floor:
        with Brokers() as brokers:
            for number, name in itertools.product(range(REPETITIONS), _LOGS):
                print(f"  {name}, start {number + 1} of {REPETITIONS} ...", flush=True)
                url = brokers.url(f"latency-{number}") if name == "Kafka" else ""
                uvloop.run(_measure_log(found[name], floor, url))
            acknowledged, read = through_kafka(brokers, ROUND_TRIPS)
        p50 = {name: found[name].add_to(result, name) for name in _LOGS}
        _add(result, "Kafka alone, a client in C, one after the other, until it is logged", acknowledged)
        _add(result, "Kafka alone, a client in C, one after the other, until a reader has it", read)
        lowest = floor.add_to(result)
    with spark() as session:
        _add(result, "Spark micro-batch that does nothing", micro_batches(session), cuts=(50,))
    for name, values in p50.items():
        for how, value, floor_of in zip(_PACES, values, lowest, strict=True):
            over = round(value / floor_of, 2)
            what = f"{name}: p50 {how} over a Redis round trip plus one fsync, {how} too"
            result.aims.append(Aim(what, "<= 3", over, over <= 3))
    return result


class _Found:
    """Of one log, from all starts."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}
        self.stages: dict[str, list[float]] = {}
        self.most: list[float] = []

    def add_to(self, result: Result, name: str) -> list[float]:
        """Rows of it; returns the medians until the reply, by pace."""
        p50 = {case: _add(result, f"{name}, {case}", times) for case, times in self.times.items()}
        for stage, times in self.stages.items():
            _add(result, f"{name}, one after the other, of which {stage}", times, cuts=(50,))
        result.rows.append(Row.of(f"{name}, most that {SENDERS} senders get through", self.most, "commands/s"))
        return [p50[_ONE_BY_ONE_REPLY], p50[_at(min(SECONDS))]]


class _Floor:
    """What is hard to go below, measured between the other cases: what else the machine does changes from one second to
    the next, and the disk is everybody's."""

    def __init__(self, file: BinaryIO, client: redis.Redis | None) -> None:
        self._file = file
        self._client = client
        self._places = itertools.cycle(range(_PAGES))
        self._synced: dict[str, list[float]] = {pace: [] for pace in _PACES}
        self._sent: dict[str, list[float]] = {pace: [] for pace in _PACES}

    def look(self) -> None:
        for pace, (count, pause) in _PACES.items():
            self._synced[pace] += _times(self._sync, count, pause)
            if self._client is not None:
                self._sent[pace] += _times(partial(self._client.hincrby, "t1", "impressions", 1), count, pause)

    def add_to(self, result: Result) -> list[float]:
        """Rows of it; returns the medians of both together, by pace."""
        lowest = []
        for pace in _PACES:
            lowest.append(_add(result, f"one fsync of a page, {pace}", self._synced[pace]))
            if self._sent[pace]:
                lowest[-1] += _add(result, f"one round trip to Redis, redis-py, {pace}", self._sent[pace])
        return lowest

    def _sync(self) -> None:
        # Over what is there, as SQLite writes into its journal: a file that grows takes longer.
        os.pwrite(self._file.fileno(), b"x" * _PAGE, _PAGE * next(self._places))
        os.fsync(self._file.fileno())


@contextmanager
def _floor() -> Iterator[_Floor]:
    with (
        tempfile.TemporaryDirectory(prefix="engram-bench-") as folder,
        (Path(folder) / "file").open("w+b") as file,
        redis_server() as client,
    ):
        file.write(bytes(_PAGES * _PAGE))
        file.flush()
        os.fsync(file.fileno())
        yield _Floor(file, client)


def _times(work: Callable[[], object], count: int, pause: float) -> list[float]:
    times = []
    for _ in range(count):
        if pause:
            time.sleep(pause)
        started = time.perf_counter()
        work()
        times.append(1000 * (time.perf_counter() - started))
    return times


async def _measure_log(found: _Found, floor: _Floor, url: str) -> None:
    async with served(app, "bench.workload:app", 1, log=url) as running:
        rng = random.Random(3)
        for _ in range(20):
            await asyncio.gather(*(_send(running.service, rng) for _ in range(SENDERS)))
        for _ in range(WARM_UP):
            await _send(running.service, rng)
        floor.look()
        handled = partial(running.service.send, seconds=_REPLY_S)
        ways: list[tuple[str, Way]] = [(_ONE_BY_ONE_LOGGED, running.service.submit), (_ONE_BY_ONE_REPLY, handled)]
        for case, send in ways:
            times = found.times.setdefault(case, [])
            for _ in range(ROUND_TRIPS // 2):
                started = time.perf_counter()
                await send(*_command(rng))
                times.append(1000 * (time.perf_counter() - started))
        for stage, times in (await _stages(running.service, rng)).items():
            found.stages.setdefault(stage, []).extend(times)
        for rate, seconds in SECONDS.items():
            floor.look()
            found.times.setdefault(_at(rate), []).extend(await _open_loop(running.service, rng, rate, seconds))
        floor.look()
        most = [await _most(running.service, rng) for _ in range(3)]
        found.most += most
        half = round(statistics.median(most) / 2)
        times = await _open_loop(running.service, rng, half, HALF_SECONDS)
        found.times.setdefault("at half of the most", []).extend(times)


def _at(rate: int) -> str:
    return f"{rate:,}/s"


async def _stages(service: Service, rng: random.Random) -> dict[str, list[float]]:
    """Where the time of a command goes, one after the other."""
    stages: dict[str, list[float]] = {
        "until the appending thread has it": [],
        "the append": [],
        "from there until its reply is here": [],
        "until who waits has it": [],
    }
    (lane,) = service.commands._group._lanes
    awaited = service._router._awaited
    at: list[float] = []

    def noted(work: Callable[..., object], *, after: bool = False) -> Callable[..., object]:
        def call(*given: object) -> object:
            if not after:
                at.append(time.perf_counter())
            done = work(*given)
            if after:
                at.append(time.perf_counter())
            return done

        return call

    lane._commit_waiting = noted(lane._commit_waiting)
    lane._log = _Appends(noted(lane._log.append, after=True))
    awaited.replied = noted(awaited.replied)
    for _ in range(ROUND_TRIPS // 2):
        at[:] = [time.perf_counter()]
        await _send(service, rng)
        at.append(time.perf_counter())
        for times, (began, ended) in zip(stages.values(), itertools.pairwise(at), strict=True):
            times.append(1000 * (ended - began))
    del lane._commit_waiting, awaited.replied
    lane._log = service.log
    return stages


class _Appends(NamedTuple):
    """A log that is only appended to."""

    append: Callable[..., object]


async def _most(service: Service, rng: random.Random) -> float:
    end = time.perf_counter() + 2
    sent = 0

    async def go_on() -> None:
        nonlocal sent
        while time.perf_counter() < end:
            await _send(service, rng)
            sent += 1

    started = time.perf_counter()
    await asyncio.gather(*(go_on() for _ in range(SENDERS)))
    return sent / (time.perf_counter() - started)


async def _open_loop(service: Service, rng: random.Random, rate: float, seconds: float) -> list[float]:
    """Milliseconds from when each command was due. A thread of its own looks at the clock: the event loop's timers are
    good to a millisecond only."""
    loop = asyncio.get_running_loop()
    count = int(rate * seconds)
    times: list[float] = []
    done: asyncio.Future[None] = loop.create_future()
    tasks: set[asyncio.Task[None]] = set()

    async def one(due: float) -> None:
        await _send(service, rng)
        times.append(1000 * (time.perf_counter() - due))
        if len(times) == count:
            done.set_result(None)

    def start(all_due: list[float]) -> None:
        for due in all_due:
            task = loop.create_task(one(due))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    def pace() -> None:
        begin = time.perf_counter()
        number = 0
        while number < count:
            time.sleep(max(begin + number / rate - time.perf_counter(), 0 if rate <= _ONE_BY_ONE else _PAUSE_S))
            first, number = number, min(int((time.perf_counter() - begin) * rate) + 1, count)
            loop.call_soon_threadsafe(start, [begin + each / rate for each in range(first, number)])

    pacer = threading.Thread(target=pace)
    pacer.start()
    async with asyncio.timeout(4 * seconds + _REPLY_S):
        await done
    pacer.join()
    return times


async def _send(service: Service, rng: random.Random) -> None:
    await service.send(*_command(rng), seconds=_REPLY_S)


def _command(rng: random.Random) -> tuple[str, Command[Tweet, None]]:
    key = f"t{rng.randrange(TWEETS)}"
    if rng.random() < 0.3:
        return key, Click(user="u1", url="https://example.org/1")
    return key, Impression(user="u1")


def _add(result: Result, case: str, times: list[float], cuts: tuple[float, ...] = (50, 99, 99.9)) -> float:
    """Rows of these percentiles; returns the first. The spread is that of the percentile in five parts of the run."""
    for cut in cuts:
        size = max(len(times) // 5, 1)
        parts = [_percentile(times[start : start + size], cut) for start in range(0, size * 5, size)]
        whole = _percentile(times, cut)
        spread = (max(parts) - min(parts)) / whole
        result.rows.append(Row(f"{case}, p{cut:g}", round(whole, 3), _UNIT, round(spread, 3)))
    return _percentile(times, cuts[0])


def _percentile(times: list[float], cut: float) -> float:
    return sorted(times)[min(int(len(times) * cut / 100), len(times) - 1)]
