"""An app as `engram run` serves it, without Spark: gateway on this event loop, one shard in a process of its own."""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import uvicorn
from engram import App
from engram.clock import system_clock
from engram.log.open import open_log
from engram.serving.gateway import build_gateway
from engram.serving.registry import Registry
from engram.serving.router import Router
from engram.serving.service import Service
from engram.serving.transport import ZmqTransport
from engram.shard.garbage import collect_rarely
from engram.shard.policy import Policy
from engram.spark.task import ShardSpec

from bench.quiet import errors_only

_START_S = 60.0


class Served(NamedTuple):
    service: Service
    router: Router
    registry: str
    url: str


@asynccontextmanager
async def served(app: App, reference: str, partitions: int, *, log: str = "") -> AsyncIterator[Served]:
    """Runs until the context ends, over a SQLite log or the one at the URL `log`. The router is one of its own, beside
    the service's."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP) as s:
        url = log or f"sqlite:{folder}/log.db"
        opened = open_log(url, app.name, partitions=partitions, create=True)
        registry = Registry()
        registry.start()
        service = Service(app, opened, registry, clock=system_clock)
        s.bind(("127.0.0.1", 0))
        config = uvicorn.Config(build_gateway(service, None), log_level="warning", timeout_graceful_shutdown=5)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[s]))
        shard = multiprocessing.get_context("spawn").Process(
            target=_run, args=(_spec(reference, url, folder, registry),)
        )
        shard.start()
        router = Router(registry, "bench")
        try:
            ready = await registry.wait_until(lambda: all(map(registry.lookup, range(partitions))), _START_S)
            assert ready, f"the shard did not serve {partitions} partitions within {_START_S:.0f} s"
            collect_rarely()
            yield Served(service, router, registry.address, f"http://127.0.0.1:{s.getsockname()[1]}")
        finally:
            await service.end_commands()
            await registry.stop_shards(clean=False)
            await asyncio.to_thread(shard.join, _START_S)
            server.should_exit = True
            await serving
            router.close()
            await service.close()
            registry.close()
            opened.close()


def _spec(reference: str, url: str, folder: str, registry: Registry) -> ShardSpec:
    return ShardSpec(
        app=reference,
        path=tuple(entry or str(Path.cwd()) for entry in sys.path),
        log=url,
        snapshots=f"file:{folder}/snapshots",
        keep=2,
        copy=f"{folder}/copy",
        shards=1,
        registry=registry.address,
        connect=_connect,
        policy=Policy(),
    )


def _connect(registry: str) -> ZmqTransport:
    errors_only()  # a task has set up its log lines just before
    return ZmqTransport(registry)


def _run(spec: ShardSpec) -> None:
    list(spec(0, []))
