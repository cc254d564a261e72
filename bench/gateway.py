"""How many commands a second through HTTP, and where does the gateway's time go?

Single commands from many connections, and batches of a thousand, over a SQLite log with a shard in a process of its
own, everything on. Beside it a bare FastAPI route in the same server with the same settings, which reads the same body
into the same type and answers at once. The load has a process of its own: where two cores are for all three, the bare
route, which needs no shard, has the advantage.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import socket
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import uvicorn
import uvloop
from engram import Client
from fastapi import FastAPI

from bench.load import rate, request
from bench.result import Aim, Result, Row
from bench.sampler import Sampler
from bench.served import served
from bench.workload import Click, Impression, Sent, app, traffic

PARTITIONS = 4
CONNECTIONS = (64, 256)
REPETITIONS = 3
SECONDS = 2.0
BATCH = 1000
BATCHES = 40
AT_ONCE = 4  # batches under way
TWEETS = 10_000
COMMANDS = 6400  # different ones, over and over
_START_S = 60.0

_KINDS = {
    "the metrics": ("prometheus_client",),
    "the server (uvicorn)": ("uvicorn/",),
    "the framework (FastAPI, Starlette)": ("starlette/", "fastapi/"),
    "the guard": ("serving/guard", "serving/access"),
    "parameters and responses": ("serving/parameters", "serving/bounds", "model/token", "model/sealed"),
    "bodies and replies of commands": ("serving/command_routes", "serving/batch"),
    "the way into the log": ("serving/commands.py", "log/group", "codec/", "log/partitioner", "model/keys"),
    "replies from the shard": ("serving/awaited", "serving/gathering", "serving/router", "serving/wire", "zmq/"),
    "the rest of Engram": ("engram/",),
    "the event loop, and the appending thread meanwhile": ("asyncio/", "uvloop/"),
}


def measure() -> Result:
    rng = random.Random(11)
    commands = list(traffic(rng, COMMANDS, tweets=TWEETS))
    singles = [_single(command) for command in commands]
    batch = [_batch(commands[:BATCH])]
    bare = [request(f"/bare/{name}?key={key}", json.dumps(body).encode()) for name, key, body in commands]
    rates: dict[str, list[float]] = {}

    def note(case: str, found: float) -> None:
        rates.setdefault(case, []).append(found)

    with _server() as line, _bare_server() as plain:
        for _ in range(REPETITIONS):
            for count in CONNECTIONS:
                note(_bare_case(count), rate(plain, bare, connections=count, seconds=SECONDS))
                note(_single_case(count), rate(line.url, singles, connections=count, seconds=SECONDS))
            batches = rate(line.url, batch, connections=AT_ONCE, seconds=SECONDS / 2)
            note(f"engram, batches of {BATCH:,}, bare requests", BATCH * batches)
            sent = uvloop.run(_by_client(line.url, commands))
            note(f"engram, batches of {BATCH:,} by send_many of the Python client", sent)
            sent = uvloop.run(_one_by_one(line.url, commands))
            note("engram, single commands by send of the Python client", sent)
        shares = {
            "single commands": line.shares(
                lambda: rate(line.url, singles, connections=CONNECTIONS[-1], seconds=SECONDS)
            ),
            "batches": line.shares(lambda: rate(line.url, batch, connections=AT_ONCE, seconds=SECONDS)),
        }
    result = Result(f"Gateway: {PARTITIONS} partitions, one shard, {REPETITIONS} repetitions")
    result.rows += [Row.of(case, found, "commands/s") for case, found in rates.items()]
    for of, kinds in shares.items():
        for kind, share in kinds.items():
            result.rows.append(Row.of(f"gateway, {of}: {kind}", [100 * share], "% of its time"))
    for count in CONNECTIONS:
        pairs = zip(rates[_single_case(count)], rates[_bare_case(count)], strict=True)
        ratio = round(statistics.median(ours / theirs for ours, theirs in pairs), 3)
        what = f"single commands over the bare FastAPI route, {count} connections"
        result.aims.append(Aim(what, ">= 0.5", ratio, ratio >= 0.5))
    return result


def _bare_case(connections: int) -> str:
    return f"bare FastAPI route, single requests, {connections} connections"


def _single_case(connections: int) -> str:
    return f"engram, single commands, {connections} connections"


def _single(command: Sent) -> bytes:
    name, key, body = command
    return request(f"/api/impressions/tweet/commands/{name}?key={key}", json.dumps(body).encode())


def _batch(commands: list[Sent]) -> bytes:
    entries = [{"command": name, "key": key, "body": body} for name, key, body in commands]
    return request("/api/impressions/commands", json.dumps(entries).encode())


async def _by_client(url: str, commands: list[Sent]) -> float:
    made = [(key, app.commands[name](**body)) for name, key, body in commands[:BATCH]]
    async with Client(url, app) as client:
        started = time.perf_counter()

        async def send() -> None:
            for _ in range(BATCHES // AT_ONCE):
                assert set(await client.send_many(made)) == {None}

        await asyncio.gather(*(send() for _ in range(AT_ONCE)))
        return BATCH * BATCHES / (time.perf_counter() - started)


async def _one_by_one(url: str, commands: list[Sent]) -> float:
    made = [(key, app.commands[name](**body)) for name, key, body in commands[: 4 * BATCH]]
    async with Client(url, app) as client:
        started = time.perf_counter()

        async def send(number: int) -> None:
            for key, command in made[number :: CONNECTIONS[0]]:
                await client.send(key, command)

        await asyncio.gather(*map(send, range(CONNECTIONS[0])))
        return len(made) / (time.perf_counter() - started)


class _Line:
    """To a gateway in a process of its own."""

    def __init__(self, line: Connection, url: str) -> None:
        self._line = line
        self.url = url

    def shares(self, work: Any) -> dict[str, float]:
        """Where its time goes during some work."""
        self._line.send("begin")
        work()
        self._line.send("end")
        found: dict[str, float] = self._line.recv()
        return found


@contextmanager
def _server() -> Iterator[_Line]:
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=_serve, args=(there,))
    process.start()
    if not here.poll(_START_S):
        process.kill()
        raise SystemExit(f"The gateway did not start within {_START_S:.0f} s.")
    try:
        yield _Line(here, here.recv())
    finally:
        here.send("stop")
        process.join(_START_S)
        process.kill()


def _serve(line: Connection) -> None:
    uvloop.run(_gateway(line))


async def _gateway(line: Connection) -> None:
    sampler = Sampler(_KINDS)
    async with served(app, "bench.workload:app", PARTITIONS) as running:
        line.send(running.url)
        while (word := await asyncio.to_thread(line.recv)) != "stop":
            if word == "begin":
                sampler.begin()
            else:
                line.send(sampler.end())


@contextmanager
def _bare_server() -> Iterator[str]:
    with socket.socket(type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        process = multiprocessing.get_context("spawn").Process(target=_serve_bare, args=(listener,))
        process.start()
        _wait_for(listener.getsockname())
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            process.kill()
            process.join()


def _wait_for(address: tuple[str, int]) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        try:
            socket.create_connection(address).close()
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


def _serve_bare(listener: socket.socket) -> None:
    api = FastAPI()

    @api.post("/bare/impression")
    async def impression(key: str, _body: Impression) -> dict[str, str | None]:
        return {"reply": None, "position": key}

    @api.post("/bare/click")
    async def click(key: str, _body: Click) -> dict[str, str | None]:
        return {"reply": None, "position": key}

    server = uvicorn.Server(uvicorn.Config(api, log_level="warning", timeout_graceful_shutdown=5))
    uvloop.run(server.serve(sockets=[listener]))
