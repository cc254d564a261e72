"""`engram run`: everything that makes up a running application, put together and taken apart again."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address, ip_address
from pathlib import Path

import uvicorn
import uvloop

from engram.cli.batch import spark_settings
from engram.cli.output import say, say_json
from engram.cli.restore import begin_from, told
from engram.cli.store import copy_folder, store_url
from engram.clock import system_clock
from engram.errors import Misuse, Unavailable
from engram.log.base import Log, NoLog
from engram.log.open import absolute_url, folder_beside, open_log
from engram.model.app import App
from engram.serving.access import Access, read_access
from engram.serving.authentication import Authenticator
from engram.serving.curve import LineKeys, kept_keys
from engram.serving.gateway import build_gateway
from engram.serving.registry import Registry, port_taken
from engram.serving.service import Service
from engram.serving.snapshots import Ending
from engram.serving.transport import ZmqTransport
from engram.shard.determinism.inspection import check_handlers
from engram.shard.garbage import collect_rarely
from engram.shard.policy import Policy
from engram.shard.reference import resolve_app
from engram.shard.requests import PartitionStatus
from engram.shard.versions import check_code_epoch
from engram.sinks.base import Sink
from engram.sinks.open import open_sink
from engram.sinks.places import Places
from engram.sinks.runner import SinkRunner
from engram.snapshots.base import SnapshotStore
from engram.snapshots.open import open_store
from engram.spark.java import java_version
from engram.spark.job import ShardJob
from engram.spark.settings import SparkSettings
from engram.spark.spark import Spark, default_master
from engram.spark.task import ShardSpec
from engram.telemetry import log_to_stderr
from engram.tracing import start_tracing

_DEFAULT_PARTITIONS = 8
# A clean stop writes a last snapshot of every partition; beyond this the shards are ended without it.
_CLEAN_STOP_S = 60.0
_HEADERS_END_S = 5
# Shards that have ended said so before: their words are on their way.
_LAST_WORDS_S = 5.0
# With a savepoint these are whole, however large: an hour is what `engram savepoint` waits for.
_SAVEPOINT_STOP_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    reference: str
    log: str
    shards: int
    partitions: int | None
    master: str
    host: str
    port: int
    auth: Path | None
    registry_host: str
    registry_port: int
    line_keys: Path | None
    snapshots: str | None
    keep_snapshots: int
    snapshot_every: int
    snapshot_pause: float
    snapshot_budget: float
    snapshot_share: float
    hot_entities: int
    spill: Path | None
    stuck_after: float
    guard: bool
    savepoint: str
    spark_settings: tuple[str, ...]
    spark_output: bool
    sinks: tuple[str, ...]
    sink_allow_private: bool
    json: bool


def run_app(options: RunOptions) -> None:
    """Runs until SIGINT or SIGTERM. Everything that can be refused is refused before Spark is started."""
    log_to_stderr(logging.WARNING)
    java_version()
    app = resolve_app(options.reference)
    master = options.master or default_master(options.shards)
    elsewhere = {} if master.startswith("local") else {"spark.driver.host": options.registry_host}
    settings = {**elsewhere, **spark_settings(options.spark_settings)}
    start_tracing(app.name)
    if options.guard:
        check_handlers(app)
    sinks = _sinks(app, options)
    access = None if options.auth is None else read_access(options.auth)
    if access is not None:
        Authenticator(access)  # refuses now what the gateway would refuse once Spark runs: a secret that is not there
    _check_registry_address(options.registry_host, options.registry_port)
    keys = _line_keys(options, access)
    SparkSettings(master, settings).check()
    with _listen(options.host, options.port, closed=access is not None) as listener:
        log = _open_log(app, options)
        beside = str(folder_beside(options.log))
        store = open_store(store_url(options.log, options.snapshots), app.name, copy=copy_folder(options.log))
        if options.savepoint:
            _tell(options, "restored", told(begin_from(options.savepoint, app, log, store)))
        check_code_epoch(app, log, store, run=_command_line(options))
        with Spark(
            name=f"engram {app.name}",
            master=master,
            slots=options.shards,
            log_file=None if options.spark_output else Path(beside + "-spark.log"),
            settings=settings,
        ) as spark:
            running = _Running(
                options,
                app=app,
                log=log,
                spark=spark,
                listener=listener,
                access=access,
                keys=keys,
                store=store,
                sinks=sinks,
            )
            uvloop.run(running.run())
    if running.lost:
        raise Unavailable(
            f"Spark was lost ({running.lost}): start the app again; nothing that was acknowledged is lost."
        )


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
        access: Access | None,
        keys: LineKeys | None,
        store: SnapshotStore,
        sinks: Sequence[Sink],
    ) -> None:
        self._options = options
        self._app = app
        self._log = log
        self._spark = spark
        self._listener = listener
        self._access = access
        self._keys = keys
        self._store = store
        self._places = Places(Path(f"{folder_beside(options.log)}-sinks.db"))
        self._sinks = [SinkRunner(sink, self._open_again, self._places) for sink in sinks]
        self._url = f"http://{_in_url(options.host)}:{listener.getsockname()[1]}"
        self.lost = ""
        """Why there is no Spark any more; empty unless that is how it ended."""

    async def run(self) -> None:
        registry = Registry(host=self._options.registry_host, port=self._options.registry_port, keys=self._keys)
        registry.on_stuck(self._tell_stuck)
        registry.on_touch(partial(self._tell, "handler_not_deterministic"))
        registry.start()
        event_log = self._open_again()
        service = Service(
            self._app,
            self._log,
            registry,
            clock=system_clock,
            events=event_log,
            sinks=lambda: [sink.status().json() for sink in self._sinks],
            snapshots=self._store,
        )
        ending = service.ending
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, ending.ask)
        server = _Server(
            uvicorn.Config(
                build_gateway(service, self._access),
                log_level="warning",
                timeout_graceful_shutdown=_HEADERS_END_S,
            )
        )
        serving = asyncio.create_task(server.serve(sockets=[self._listener]))
        loop = asyncio.get_running_loop()

        def end_without_spark(why: str) -> None:
            self.lost = why
            loop.call_soon_threadsafe(ending.ask)

        job = ShardJob(self._spark, self._spec(registry), on_restart=self._tell_restart, on_lost=end_without_spark)
        started = time.monotonic()
        self._tell(
            "starting",
            f"{self._app.name}: {self._options.shards} shards on Spark ({self._spark.ui})",
            ui=self._spark.ui,
        )
        job.start()
        for sink in self._sinks:
            sink.start()
        try:
            await self._until_ready(registry, ending, started)
            await ending.wait()
        finally:
            self._tell("stopping", "Stopping: a last snapshot of every partition, then the end.")
            await service.end_commands()
            job.expect_end()
            await registry.stop_shards(clean=True, savepoint=ending.savepoint)
            clean = await asyncio.to_thread(job.join, _SAVEPOINT_STOP_S if ending.savepoint else _CLEAN_STOP_S)
            # Whoever asked for the end hears of it from a gateway that is still there; commands are refused meanwhile.
            ending.tell(await registry.last_words(self._log.partitions, _LAST_WORDS_S if ending.savepoint else 0))
            server.should_exit = True
            await serving
            await service.close()
            registry.close()
            await asyncio.gather(*(asyncio.to_thread(sink.stop) for sink in self._sinks))
            self._places.close()
            event_log.close()
            self._log.close()
            self._tell("stopped", "Stopped." if clean else "Stopped; some shards had to be ended without a snapshot.")

    def _open_again(self) -> Log:
        """The same log, for a reader of its own: it does not stand in line with the appends."""
        return open_log(self._options.log, self._app.name)

    def _spec(self, registry: Registry) -> ShardSpec:
        return ShardSpec(
            app=self._options.reference,
            path=self._spark.settings.path,
            log=absolute_url(self._options.log),
            snapshots=store_url(self._options.log, self._options.snapshots),
            keep=self._options.keep_snapshots,
            copy=str(copy_folder(self._options.log)),
            shards=self._options.shards,
            registry=registry.address,
            connect=partial(ZmqTransport, keys=registry.keys),
            policy=Policy(
                snapshot_every=self._options.snapshot_every,
                snapshot_pause=self._options.snapshot_pause,
                snapshot_budget_ms=self._options.snapshot_budget,
                snapshot_share=self._options.snapshot_share,
                hot_entities=self._options.hot_entities,
                stuck_after=self._options.stuck_after,
                guard=self._options.guard,
            ),
            spill=str(self._options.spill.expanduser().absolute()) if self._options.spill else "",
        )

    async def _until_ready(self, registry: Registry, ending: Ending, started: float) -> None:
        def served() -> bool:
            every = range(self._log.partitions)
            return ending.is_asked or all(registry.lookup(p) or registry.problem(p) for p in every)

        while not await registry.wait_until(served, 5.0):
            waiting = [p for p in range(self._log.partitions) if registry.lookup(p) is None]
            handled = sum(p.handled for shard in registry.shards() for p in shard.partitions)
            self._tell(
                "recovering",
                f"  {len(waiting)} partitions still recovering, {handled:,} commands replayed ...",
            )
        if ending.is_asked:
            return
        collect_rarely()
        for partition in range(self._log.partitions):
            problem = registry.problem(partition)
            if problem:
                self._tell("partition_stopped", f"Partition {partition} is stopped. {problem}", partition=partition)
        seconds = time.monotonic() - started
        self._tell(
            "ready",
            f"Ready in {seconds:.1f} s. API page: {self._url}/docs   (Ctrl-C stops)",
            url=self._url,
            registry=registry.address,
            pid=os.getpid(),
            partitions=self._log.partitions,
        )

    def _tell_stuck(self, partition: PartitionStatus) -> None:
        number, stuck = partition.partition, partition.stuck
        if stuck is None:
            self._tell("handler_returned", f"Partition {number} goes on: the handler has returned.", partition=number)
        else:
            text = f"Partition {number} is stuck. {partition.problem} It is here:\n{stuck.stack}"
            self._tell("handler_stuck", text.rstrip(), partition=number, **stuck.model_dump())

    def _tell_restart(self, restart: int, why: str) -> None:
        self._tell("restarted", f"The Spark job had ended ({why}); it is started again, number {restart}.")

    def _tell(self, event: str, text: str, **more: object) -> None:
        _tell(self._options, event, text, **more)


def _tell(options: RunOptions, event: str, text: str, **more: object) -> None:
    if options.json:
        say_json({"event": event, "text": text, **more})
    else:
        say(text)


def _command_line(options: RunOptions) -> str:
    """How to start the same app once more."""
    snapshots = f" --snapshots {options.snapshots}" if options.snapshots else ""
    return f"engram run {options.reference} --log {options.log}{snapshots}"


class _Server(uvicorn.Server):
    """Signals are this program's business, not the server's."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _sinks(app: App, options: RunOptions) -> list[Sink]:
    sinks = [open_sink(url, app.name, allow_private=options.sink_allow_private) for url in options.sinks]
    for sink in sinks:
        if [other.name for other in sinks].count(sink.name) > 1:
            raise Misuse(f"--sink {sink.name} is there twice: leave one out.")
    return sinks


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


def _address_of(host: str, port: int) -> tuple[int, str]:
    """The family and the address that a host's name means: what is looked at is what is listened on."""
    try:
        family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError) as problem:
        raise Misuse(f"--host {host} is no address of this machine: {problem}.") from problem
    return family, str(where[0])


def _listen(host: str, port: int, *, closed: bool) -> socket.socket:
    family, address = _address_of(host, port)
    if not closed and not ip_address(address).is_loopback:
        raise Misuse(
            f"--host {host} is open to others, and everybody could send commands: say who may with --auth FILE, or "
            "leave --host out."
        )
    # Named by its protocol: only then does asyncio switch off Nagle's algorithm, which costs 40 ms a request.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
    except OSError as problem:
        listener.close()
        raise Misuse(
            f"Port {port} on {host} cannot be used ({problem.strerror}): choose another with --port."
        ) from problem
    return listener


def _line_keys(options: RunOptions, access: Access | None) -> LineKeys | None:
    """Where nobody else can come to the shards, or everybody may do everything anyway, their lines are plain."""
    if options.line_keys is not None:
        return kept_keys(options.line_keys)
    alone = access is None and ip_address(options.registry_host).is_loopback
    return None if alone else LineKeys.new()


def _check_registry_address(host: str, port: int) -> None:
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind((host, 0))
        if IPv4Address(host).is_unspecified:
            raise ValueError(host)
    except (OSError, ValueError) as problem:
        raise Misuse(
            f"--registry-host {host} is no IPv4 address of this machine: write the one that other machines reach it by."
        ) from problem
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as problem:
            raise port_taken(host, port, problem.strerror) from problem


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
