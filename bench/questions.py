"""What asking costs from outside, a part of `make bench NAME=reads`: an app as it runs, and a Redis beside it.

Point queries go through the RPC client, one at a time as the Redis client does it, each on a thread of this process, in
turns; through the router that gateways use, one at a time and many at once; and over HTTP from another process. Looks
go to all partitions. Commands go through the gateway's service, alone, and with queries beside them at a tenth of the
most that was measured: from another process through the RPC client, and on the gateway's own event loop. Readers of
one query are streams of the gateway, without connections.

What is compared is compared within a round: the median of the rounds' ratios counts, not the ratio of medians.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import statistics
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import NamedTuple

import redis
import uvloop
from engram import Client, Token
from engram.log.partitioner import partition_of
from engram.serving.read_models import Wanted
from engram.serving.rpc import Rpc

from bench.redis_server import redis_server
from bench.result import Aim, Result, Row
from bench.served import Served, served
from bench.users import Counted, Evaluations, Follow, Followers, See, Seen, app

PARTITIONS = 8
USERS = 1000
SECONDS = 1.0  # of each repetition
REPETITIONS = 5
IN_FLIGHT = 64
WRITERS = 256
PAGE = 20
READERS = 1000
CHANGES = 20
_DEADLINE_S = 30.0
_PACE_S = 0.005
_MARGIN_S = 0.2  # a load begins before what is measured, and ends after it
_RENEWED_S = 5.0

KEYS = [f"u{number}" for number in range(USERS)]
NOTHING = Token(app.name, PARTITIONS)
Work = Callable[[str], Awaitable[object]]


class Measured(NamedTuple):
    """How many a second, and the seconds that each took."""

    rate: float
    spent: list[float]

    def percentile(self, part: float) -> float:
        """In milliseconds."""
        return sorted(self.spent)[int(len(self.spent) * part / 100)] * 1000


async def measure_questions(result: Result) -> None:
    with redis_server() as server:
        async with served(app, "bench.users:app", PARTITIONS) as running:
            await _fill(running)
            for key in KEYS if server is not None else ():
                server.set(key, b"1")
            await _point_queries(result, running, server)
            await _scatter(result, running)
            await _commands(result, running)
            await _readers(result, running)


async def _fill(running: Served) -> None:
    """Everybody is followed by some, and was seen once."""
    sent = [running.service.submit(key, See()) for key in KEYS]
    sent += [
        running.service.submit(key, Follow(whom=f"u{(n + by) % USERS}")) for n, key in enumerate(KEYS) for by in (1, 2)
    ]
    await asyncio.gather(*sent)
    wanted = Token.of(app.name, PARTITIONS, await asyncio.gather(*(running.service.submit(key, See()) for key in KEYS)))
    await asyncio.gather(*(running.service.ask(k, Seen(), at_least=wanted, seconds=_DEADLINE_S) for k in KEYS))


async def _point_queries(result: Result, running: Served, server: redis.Redis | None) -> None:
    ask = asking(running)
    found: dict[str, list[Measured]] = {}
    rpc = "through the RPC client, one at a time"
    alone, many = "through a gateway's router, one at a time", f"through a gateway's router, {IN_FLIGHT} at once"
    http, http_many = "over HTTP, one at a time", f"over HTTP, {IN_FLIGHT} at once"
    with _process() as other, Rpc(running.registry, app, timeout=_DEADLINE_S) as client:
        loop = asyncio.get_running_loop()
        for _ in range(REPETITIONS):
            if server is not None:
                found.setdefault("redis", []).append(await asyncio.to_thread(_reads, server.get))
            found.setdefault(rpc, []).append(await asyncio.to_thread(_reads, partial(_ask, client)))
            found.setdefault(alone, []).append(await times(ask, 1))
            found.setdefault(many, []).append(await times(ask, IN_FLIGHT))
            for case, at_once in ((http, 1), (http_many, IN_FLIGHT)):
                found.setdefault(case, []).append(await loop.run_in_executor(other, _over_http, running.url, at_once))
    for case, repetitions in found.items():
        _add_rows(
            result, f"point queries {case}" if case != "redis" else "Redis point reads, one at a time", repetitions
        )
    if server is None:
        return
    of_redis = found["redis"]
    for case in (rpc, alone, many):
        share = round(_median(m.rate / r.rate for m, r in zip(found[case], of_redis, strict=True)), 2)
        result.aims.append(Aim(f"queries/s {case}, in those of Redis", ">= 1", share, share >= 1))
    for case in (rpc, alone):
        pairs = zip(found[case], of_redis, strict=True)
        times_p99 = round(_median(m.percentile(99) / r.percentile(99) for m, r in pairs), 2)
        result.aims.append(Aim(f"p99 {case}, in that of Redis", "<= 2", times_p99, times_p99 <= 2))


def _add_rows(result: Result, case: str, repetitions: list[Measured]) -> None:
    result.rows.append(Row.of(case, [measured.rate for measured in repetitions], "1/s"))
    for part in (50, 99):
        result.rows.append(Row.of(f"  p{part}", [measured.percentile(part) for measured in repetitions], "ms"))


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)


async def _scatter(result: Result, running: Served) -> None:
    async def look(key: str) -> object:
        wanted = Wanted(NOTHING, _DEADLINE_S)
        return await running.service.read_models.page(Followers, key, wanted, limit=PAGE, cursor=None)

    repetitions = [await times(look, 1) for _ in range(REPETITIONS)]
    _add_rows(result, f"looks into a lookup over {PARTITIONS} partitions, one at a time", repetitions)


async def _commands(result: Result, running: Served) -> None:
    """In rounds without and with queries, each first in turn, so that whatever else the machine does is in both."""

    async def send(key: str) -> object:
        return await running.service.send(key, See(), seconds=_DEADLINE_S)

    async def commands() -> float:
        return (await times(send, WRITERS)).rate

    async def beside_router() -> float:
        load = asyncio.create_task(_paced(asking(running), tenths["a gateway's router"]))
        rate = await commands()
        load.cancel()
        await asyncio.wait([load])
        return rate

    async def beside_rpc() -> float:
        tenth, seconds = tenths["the RPC client"], SECONDS + 2 * _MARGIN_S
        load = loop.run_in_executor(other, _paced_rpc, running.registry, tenth, seconds)
        await asyncio.sleep(_MARGIN_S)
        rate = await commands()
        await load
        return rate

    loop = asyncio.get_running_loop()
    most = {
        name: max(row.median for row in result.rows if name in row.case and row.unit == "1/s")
        for name in ("the RPC client", "a gateway's router")
    }
    tenths = {name: rate / 10 for name, rate in most.items()}
    with _process() as other:
        await loop.run_in_executor(other, _paced_rpc, running.registry, tenths["the RPC client"], _MARGIN_S)
        for name, beside in (("the RPC client", beside_rpc), ("a gateway's router", beside_router)):
            rounds: list[tuple[float, float]] = []
            for number in range(2 * REPETITIONS):
                if number % 2:
                    with_load = await beside()
                    rounds.append((await commands(), with_load))
                else:
                    alone = await commands()
                    rounds.append((alone, await beside()))
            result.rows.append(Row.of(f"commands with replies, {WRITERS} at once", [a for a, _ in rounds], "1/s"))
            case = f"the same with {tenths[name]:,.0f} queries/s beside them, through {name}"
            result.rows.append(Row.of(case, [b for _, b in rounds], "1/s"))
            cost = round(1 - _median(b / a for a, b in rounds), 3)
            case = f"of the commands, what a tenth of the queries through {name} costs"
            result.aims.append(Aim(case, "<= 0.1", cost, cost <= 0.1))


async def _readers(result: Result, running: Served) -> None:
    key = KEYS[0]
    streams = [
        await running.service.subscribe(key, Counted(), at_least=NOTHING, last=None, seconds=_DEADLINE_S)
        for _ in range(READERS)
    ]
    for stream in streams:
        await anext(stream)  # how long to wait before coming back
        await anext(stream)  # the answer of now
    before, started = await _evaluations(running, key), time.perf_counter()
    spent = []
    for _ in range(CHANGES):
        sent = time.perf_counter()
        news = asyncio.gather(*(anext(stream) for stream in streams))
        await running.service.submit(key, See())
        await news
        spent.append((time.perf_counter() - sent) * 1000)
    renewals = int((time.perf_counter() - started) / _RENEWED_S) + 1
    evaluations = await _evaluations(running, key) - before
    for stream in streams:
        await stream.aclose()
    result.rows.append(Row.of(f"from a command until {READERS:,} readers have the change", spent, "ms"))
    name = f"evaluations for {CHANGES} changes that {READERS:,} read, one more for each lease renewed"
    result.aims.append(Aim(name, f"<= {CHANGES + renewals}", evaluations, evaluations <= CHANGES + renewals))


async def _evaluations(running: Served, key: str) -> int:
    answer = await running.service.ask(key, Evaluations(), at_least=NOTHING, seconds=_DEADLINE_S)
    return int(answer.body)


def asking(running: Served) -> Work:
    async def ask(key: str) -> object:
        partition = partition_of(key, PARTITIONS)
        return await running.router.ask(partition, key, "seen", 1, b"{}", at_least=None, seconds=_DEADLINE_S)

    return ask


async def times(work: Work, at_once: int) -> Measured:
    spent: list[float] = []
    began = time.perf_counter()
    end = began + SECONDS
    keys = itertools.cycle(KEYS)

    async def worker() -> None:
        while (started := time.perf_counter()) < end:
            await work(next(keys))
            spent.append(time.perf_counter() - started)

    await asyncio.gather(*(worker() for _ in range(at_once)))
    return Measured(len(spent) / (time.perf_counter() - began), spent)


async def _paced(work: Work, rate: float) -> None:
    """So many a second, evenly, whatever the others do."""
    keys, done, started = itertools.cycle(KEYS), 0, time.perf_counter()
    while True:
        due = int((time.perf_counter() - started) * rate) - done
        await asyncio.gather(*(work(next(keys)) for _ in range(due)))
        done += due
        await asyncio.sleep(_PACE_S)


def _reads(read: Callable[[str], object]) -> Measured:
    """One after the other, on the calling thread."""
    spent = []
    began = time.perf_counter()
    keys, end = itertools.cycle(KEYS), began + SECONDS
    while (started := time.perf_counter()) < end:
        read(next(keys))
        spent.append(time.perf_counter() - started)
    return Measured(len(spent) / (time.perf_counter() - began), spent)


def _ask(client: Rpc, key: str) -> int:
    return client.ask(key, Seen())


def _paced_rpc(registry: str, rate: float, seconds: float) -> None:
    """So many a second, evenly, whatever the others do; in a process of its own."""
    with Rpc(registry, app, timeout=_DEADLINE_S) as client:
        keys, done, started = itertools.cycle(KEYS), 0, time.perf_counter()
        while (spent := time.perf_counter() - started) < seconds:
            due = int(spent * rate) - done
            for _ in range(due):
                _ask(client, next(keys))
            done += due
            time.sleep(_PACE_S)


def _process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


def _over_http(url: str, at_once: int) -> Measured:
    """In a process of its own: the gateway does not share its interpreter with its clients."""

    async def run() -> Measured:
        async with Client(url, app) as client:
            return await times(lambda key: client.ask(key, Seen()), at_once)

    return uvloop.run(run())
