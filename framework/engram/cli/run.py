"""`engram run`: everything that makes up a running application, put together and taken apart again."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn
import uvloop

from engram.cli.output import say, say_json
from engram.clock import system_clock
from engram.errors import Misuse
from engram.log.base import Log, NoLog
from engram.log.open import absolute_url, folder_beside, open_log
from engram.model.app import App
from engram.serving.gateway import build_gateway
from engram.serving.registry import Registry
from engram.serving.service import Service
from engram.serving.transport import ZmqTransport
from engram.shard.reference import resolve_app
from engram.shard.shard import Policy
from engram.shard.versions import check_code_epoch
from engram.snapshots.files import FileSnapshots
from engram.spark.java import java_version
from engram.spark.job import ShardJob
from engram.spark.session import Spark, default_master
from engram.spark.task import ShardSpec
from engram.telemetry import log_to_stderr

_DEFAULT_PARTITIONS = 8
# A clean stop writes a last snapshot of every partition; beyond this the shards are ended without it.
_CLEAN_STOP_S = 60.0
_HEADERS_END_S = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    reference: str
    log: str
    shards: int
    partitions: int | None
    master: str
    port: int
    snapshots: Path | None
    snapshot_every: int
    spark_settings: tuple[str, ...]
    spark_output: bool
    json: bool


def run_app(options: RunOptions) -> None:
    """Runs until SIGINT or SIGTERM. Everything that can be refused is refused before Spark is started."""
    log_to_stderr(logging.WARNING)
    java_version()
    app = resolve_app(options.reference)
    settings = dict(map(_setting, options.spark_settings))
    with _listen(options.port) as listener:
        log = _open_log(app, options)
        beside = str(folder_beside(options.log))
        folder = (options.snapshots or Path(beside + "-snapshots")).expanduser().absolute()
        check_code_epoch(app, log, FileSnapshots(folder, app.name))
        with Spark(
            name=f"engram {app.name}",
            master=options.master or default_master(options.shards),
            slots=options.shards,
            log_file=None if options.spark_output else Path(beside + "-spark.log"),
            settings=settings,
        ) as spark:
            running = _Running(options, app=app, log=log, spark=spark, listener=listener, snapshots=folder)
            uvloop.run(running.run())


class _Running:
    """A running application: registry, gateway and shards, on one event loop."""

    def __init__(
        self,
        options: RunOptions,
        *,
        app: App,
        log: Log,
        spark: Spark,
        listener: socket.socket,
        snapshots: Path,
    ) -> None:
        self._options = options
        self._app = app
        self._log = log
        self._spark = spark
        self._listener = listener
        self._snapshots = snapshots
        self._url = f"http://127.0.0.1:{listener.getsockname()[1]}"

    async def run(self) -> None:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        registry = Registry()
        registry.start()
        service = Service(self._app, self._log, registry, clock=system_clock)
        server = _Server(
            uvicorn.Config(build_gateway(service), log_level="warning", timeout_graceful_shutdown=_HEADERS_END_S)
        )
        serving = asyncio.create_task(server.serve(sockets=[self._listener]))
        job = ShardJob(self._spark, self._spec(registry), on_restart=self._tell_restart)
        started = time.monotonic()
        self._tell(
            "starting",
            f"{self._app.name}: {self._options.shards} shards on Spark ({self._spark.ui})",
            ui=self._spark.ui,
        )
        job.start()
        try:
            await self._until_ready(registry, stop, started)
            await stop.wait()
        finally:
            self._tell("stopping", "Stopping: a last snapshot of every partition, then the end.")
            server.should_exit = True
            await serving
            await service.close()
            job.expect_end()
            await registry.stop_shards(clean=True)
            clean = await asyncio.to_thread(job.join, _CLEAN_STOP_S)
            registry.close()
            self._log.close()
            self._tell("stopped", "Stopped." if clean else "Stopped; some shards had to be ended without a snapshot.")

    def _spec(self, registry: Registry) -> ShardSpec:
        return ShardSpec(
            app=self._options.reference,
            path=tuple(entry or str(Path.cwd()) for entry in sys.path),
            log=absolute_url(self._options.log),
            snapshots=str(self._snapshots),
            shards=self._options.shards,
            registry=registry.address,
            connect=ZmqTransport,
            policy=Policy(snapshot_every=self._options.snapshot_every),
        )

    async def _until_ready(self, registry: Registry, stop: asyncio.Event, started: float) -> None:
        def served() -> bool:
            every = range(self._log.partitions)
            return stop.is_set() or all(registry.lookup(p) or registry.problem(p) for p in every)

        while not await registry.wait_until(served, 5.0):
            waiting = [p for p in range(self._log.partitions) if registry.lookup(p) is None]
            handled = sum(p.handled for shard in registry.shards() for p in shard.partitions)
            self._tell(
                "recovering",
                f"  {len(waiting)} partitions still recovering, {handled:,} commands replayed ...",
            )
        if stop.is_set():
            return
        for partition in range(self._log.partitions):
            problem = registry.problem(partition)
            if problem:
                self._tell("partition_stopped", f"Partition {partition} is stopped. {problem}", partition=partition)
        seconds = time.monotonic() - started
        self._tell(
            "ready",
            f"Ready in {seconds:.1f} s. API page: {self._url}/docs   (Ctrl-C stops)",
            url=self._url,
            pid=os.getpid(),
            partitions=self._log.partitions,
        )

    def _tell_restart(self, restart: int, why: str) -> None:
        self._tell("restarted", f"The Spark job had ended ({why}); it is started again, number {restart}.")

    def _tell(self, event: str, text: str, **more: object) -> None:
        if self._options.json:
            say_json({"event": event, "text": text, **more})
        else:
            say(text)


class _Server(uvicorn.Server):
    """Signals are this program's business, not the server's."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _open_log(app: App, options: RunOptions) -> Log:
    """A new log gets the default number of partitions; an existing one keeps its own.

    Nothing is made for a run that is refused: the number of partitions is for ever.
    """
    try:
        log = open_log(options.log, app.name, partitions=options.partitions)
    except NoLog:
        partitions = options.partitions or _DEFAULT_PARTITIONS
        _check_shards(options.shards, partitions)
        log = open_log(options.log, app.name, partitions=partitions, create=True)
    _check_shards(options.shards, log.partitions)
    return log


def _check_shards(shards: int, partitions: int) -> None:
    if shards > partitions:
        raise Misuse(f"{shards} shards cannot share {partitions} partitions: use fewer --shards.")


def _listen(port: int) -> socket.socket:
    # Named by its protocol: only then does asyncio switch off Nagle's algorithm, which costs 40 ms a request.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as problem:
        listener.close()
        raise Misuse(
            f"Port {port} on 127.0.0.1 cannot be used ({problem.strerror}): choose another with --port."
        ) from problem
    return listener


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise Misuse(f"--spark-conf {text!r} is not NAME=VALUE.")
    return name, value
