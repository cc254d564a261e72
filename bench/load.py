"""Load for HTTP servers: connections that send the same requests over and over, in a process of its own.

As little as possible is done with what comes back, so that the server is what is measured: bodies are counted, and the
status of each answer is looked at.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import cast
from urllib.parse import urlsplit

import uvloop


def request(path: str, body: bytes) -> bytes:
    headers = f"Host: bench\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return f"POST {path} HTTP/1.1\r\n{headers}\r\n".encode() + body


def rate(url: str, requests: Sequence[bytes], *, connections: int, seconds: float) -> float:
    """Answers a second, to `connections` that each wait for an answer before the next request."""
    here, there = multiprocessing.Pipe()
    spawn = multiprocessing.get_context("spawn")
    process = spawn.Process(target=_run, args=(there, url, list(requests), connections, seconds))
    process.start()
    try:
        if not here.poll(seconds + 60):
            raise SystemExit(f"{url} did not answer within {seconds + 60:.0f} s.")
        found = here.recv()
    finally:
        process.join(5)
        process.kill()
    if isinstance(found, str):
        raise SystemExit(found)
    return float(found)


def _run(line: Connection, url: str, requests: list[bytes], connections: int, seconds: float) -> None:
    try:
        line.send(uvloop.run(_load(url, requests, connections, seconds)))
    except Exception as problem:  # noqa: BLE001 - told where it is waited for
        line.send(f"The load on {url} ended: {problem!r}")


async def _load(url: str, requests: list[bytes], connections: int, seconds: float) -> float:
    loop = asyncio.get_running_loop()
    at = urlsplit(url)
    clients = [_Client(requests[number::connections] or requests) for number in range(connections)]
    for client in clients:
        await loop.create_connection(lambda client=client: client, at.hostname, at.port)
    await asyncio.sleep(seconds / 4)  # it gets warm
    before, started = sum(client.answers for client in clients), time.perf_counter()
    await asyncio.sleep(seconds)
    answers = (sum(client.answers for client in clients) - before) / (time.perf_counter() - started)
    for client in clients:
        if client.problem:
            raise RuntimeError(client.problem)
        client.end()
    return answers


class _Client(asyncio.Protocol):
    def __init__(self, requests: list[bytes]) -> None:
        self._requests = requests
        self._transport: asyncio.Transport | None = None
        self._received = b""
        self.answers = 0
        self.problem = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._requests[0])

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        if len(body) < length:
            return
        if not head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 202")):
            self.problem = (head[:40] + body[:200]).decode(errors="replace")
        self._received = b""
        self.answers += 1
        if self._transport is not None:
            self._transport.write(self._requests[self.answers % len(self._requests)])

    def end(self) -> None:
        if self._transport is not None:
            self._transport.close()
            self._transport = None
