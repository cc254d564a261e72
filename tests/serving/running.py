"""An app that runs without Spark: registry and gateway on an event loop, shards on threads, a log in a file."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx
import uvicorn
import uvloop
from engram import App, Client
from engram.clock import system_clock
from engram.codec.record import Kind
from engram.errors import Fenced
from engram.log.base import Entry
from engram.log.partitioner import partition_of
from engram.log.sqlite import SqliteLog
from engram.serving.access import Access
from engram.serving.curve import LineKeys
from engram.serving.gateway import build_gateway
from engram.serving.registry import Registry
from engram.serving.service import Service
from engram.serving.transport import ZmqTransport
from engram.shard.policy import Policy
from engram.shard.shard import Shard
from engram.snapshots.files import FileSnapshots

from tests.shard.network import Faulty

T = TypeVar("T")
SECONDS = 20.0
LAST_WORDS_S = 5.0


class FaultyFile(Faulty, SqliteLog):
    """A log in a file that fails when told to, for the shard that has opened it."""


class RunningShard:
    """A shard on a thread, with a log and a line of its own, as it would have in a process of its own."""

    def __init__(
        self,
        app: App,
        folder: Path,
        registry: str,
        *,
        number: int,
        partitions: list[int],
        owner: str,
        policy: Policy | None,
        keys: LineKeys | None,
        is_current: Callable[[], bool],
    ) -> None:
        self._keys = keys
        self._is_current = is_current
        self.number = number
        self.partitions = partitions
        self._app = app
        self._folder = folder
        self._registry = registry
        self._owner = owner
        self._policy = policy
        self._killed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=owner)
        self._thread.start()

    def kill(self) -> None:
        """As SIGKILL does: nothing is flushed, announced or answered; only the descriptors go."""
        self._killed.set()
        self.join()

    def join(self) -> None:
        self._thread.join(SECONDS)
        assert not self._thread.is_alive(), f"{self._owner} did not end"

    def _run(self) -> None:
        """As Spark runs a task: one that failed is started again, unless another was started in its place."""
        for attempt in itertools.count():
            try:
                return self._attempt(f"{self._owner}.{attempt}" if attempt else self._owner)
            except Fenced:
                if self._killed.is_set() or not self._is_current():
                    return None

    def _attempt(self, owner: str) -> None:
        self.log = log = FaultyFile(self._folder / "log.db", self._app.name)
        transport = ZmqTransport(self._registry, keys=self._keys)
        shard = Shard(
            self._app,
            number=self.number,
            partitions=self.partitions,
            log=log,
            store=FileSnapshots(self._folder / "snapshots", self._app.name),
            transport=transport,
            clock=system_clock,
            owner=owner,
            policy=self._policy,
            background=True,
        )
        try:
            if shard.recover():
                while not self._killed.is_set() and shard.step():
                    pass
        finally:
            if self._killed.is_set():
                shard._watchdog.close()
                shard._flusher.close()
                shard._watch.close()
                shard._snapshotting._writer.close()
                if transport._door is not None:
                    transport._door.close()
                transport._context.destroy(linger=0)
                log.close()
            else:
                shard.close()


class RunningApp:
    """See the module. Use it as a context; everything is closed at the end."""

    def __init__(
        self,
        app: App,
        folder: Path,
        *,
        shards: int = 2,
        partitions: int = 4,
        policy: Policy | None = None,
        access: Access | None = None,
        keys: LineKeys | None = None,
    ) -> None:
        self.app = app
        self._keys = keys
        self._access = access
        self._policy = policy
        self.folder = folder
        self.log = SqliteLog(folder / "log.db", app.name, partitions=partitions, create=True)
        self.shards: list[RunningShard] = []
        self._count = shards
        self._owners = 0
        self._current: dict[int, str] = {}  # the owner that was started last, by the shard's number
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._listener.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.base = f"/api/{app.name}"
        self.http = httpx.Client(base_url=self.url, timeout=SECONDS, trust_env=False)
        self._up: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="gateway")

    def __enter__(self) -> Self:
        self._thread.start()
        self._up.result(SECONDS)
        for number in range(self._count):
            self.start_shard(number, range(number, self.log.partitions, self._count))
        self.wait_until(self.all_served)
        return self

    def __exit__(self, *_problem: object) -> None:
        self.http.close()
        if self._thread.is_alive():  # it may have been asked to end before
            self._loop.call_soon_threadsafe(self.service.ending.ask)
        self._thread.join(SECONDS)
        assert not self._thread.is_alive(), "the gateway did not end"

    def start_shard(self, number: int, partitions: Iterable[int]) -> RunningShard:
        """Starts a shard, as Spark does after a failure. It takes the partitions over from whoever has them."""
        self._owners += 1
        owner = self._current[number] = f"{number}-{self._owners}"
        self.shards.append(
            RunningShard(
                self.app,
                self.folder,
                self.registry.address,
                number=number,
                partitions=list(partitions),
                owner=owner,
                policy=self._policy,
                keys=self._keys,
                is_current=lambda: self._current[number] == owner,
            )
        )
        return self.shards[-1]

    def client(self, **how: Any) -> Client:
        return Client(self.url, self.app, **how)

    def partition_of(self, key: str) -> int:
        return partition_of(key, self.log.partitions)

    def key_in(self, partition: int) -> str:
        return next(key for key in map("key{}".format, range(10_000)) if self.partition_of(key) == partition)

    def shard_of(self, key: str) -> RunningShard:
        return next(shard for shard in reversed(self.shards) if self.partition_of(key) in shard.partitions)

    def spoil(self, partition: int) -> int:
        """Appends a record that nobody can decode."""
        return self.log.append([Entry(partition, Kind.COMMANDS, system_clock(), b"garbage")])[0]

    def all_served(self) -> bool:
        return all(self.registry.lookup(partition) for partition in range(self.log.partitions))

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Waits until something that the shards announce is true."""
        assert self.on_loop(self.registry.wait_until(ready, SECONDS)), "it did not come true in time"

    def on_loop(self, awaited: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine that runs on the gateway's event loop."""
        return asyncio.run_coroutine_threadsafe(awaited, self._loop).result(2 * SECONDS)

    # The gateway's thread

    def _run(self) -> None:
        try:
            uvloop.run(self._serve())  # as `engram run` does
        except BaseException as problem:
            if not self._up.done():
                self._up.set_exception(problem)
            raise

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.registry = Registry(keys=self._keys)
        self.registry.start()
        store = FileSnapshots(self.folder / "snapshots", self.app.name)
        self.service = Service(self.app, self.log, self.registry, clock=system_clock, snapshots=store)
        config = uvicorn.Config(build_gateway(self.service, self._access), log_config=None, timeout_graceful_shutdown=5)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[self._listener]))
        self._up.set_result(None)
        await self.service.ending.wait()
        await self.service.end_commands()
        await self.registry.stop_shards(clean=True, savepoint=self.service.ending.savepoint)
        for shard in self.shards:
            await asyncio.to_thread(shard.join)
        seconds = LAST_WORDS_S if self.service.ending.savepoint else 0
        self.service.ending.tell(await self.registry.last_words(self.log.partitions, seconds))
        server.should_exit = True
        await serving
        await self.service.close()
        self.registry.close()
        self.log.close()
