"""The registry: which shard serves a partition, and where. Shards announce themselves; gateways look up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

import structlog
import zmq
import zmq.asyncio
from pydantic import ValidationError

from engram.serving.wire import encode_request
from engram.shard.requests import PartitionStatus, ShardStatus, Stop

_logger = structlog.get_logger()


class Location(NamedTuple):
    """Where a partition is served. Of two, the one with the greater epoch is right."""

    epoch: int
    address: str
    shard: int


class Registry:
    """Hears from all shards of an application. Lives on one event loop; listens on loopback."""

    def __init__(self) -> None:
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 1000)
        self.address = f"tcp://127.0.0.1:{self._socket.bind_to_random_port('tcp://127.0.0.1')}"
        self._shards: dict[str, tuple[bytes, ShardStatus, float]] = {}  # by owner
        self._locations: dict[int, Location] = {}
        self._problems: dict[int, str] = {}
        self._listeners: list[Callable[[int], None]] = []
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    def lookup(self, partition: int) -> Location | None:
        """Where the partition is served now, as far as is known."""
        return self._locations.get(partition)

    def addresses(self) -> set[str]:
        """Where partitions are served now."""
        return {location.address for location in self._locations.values()}

    def problem(self, partition: int) -> str:
        """Why the partition is stopped; empty if it is not."""
        return self._problems.get(partition, "")

    def on_move(self, listener: Callable[[int], None]) -> None:
        """Calls `listener` with every partition that gets a new location."""
        self._listeners.append(listener)

    def shards(self) -> list[ShardStatus]:
        """The newest status of every shard, with the current owners only."""
        newest: dict[int, tuple[float, ShardStatus]] = {}
        for _, status, heard in self._shards.values():
            if status.shard not in newest or heard > newest[status.shard][0]:
                newest[status.shard] = heard, status
        return [status for _, (_, status) in sorted(newest.items())]

    async def wait_until(self, ready: Callable[[], bool], seconds: float) -> bool:
        """Waits until `ready` holds; it is looked at after every change."""
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(ready)
        except TimeoutError:
            return False
        return True

    async def stop_shards(self, *, clean: bool) -> None:
        for identity, _, _ in self._shards.values():
            await self._socket.send_multipart([identity, *encode_request(Stop(clean=clean))])

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._context.destroy(linger=0)

    async def _run(self) -> None:
        while True:
            identity, *frames = await self._socket.recv_multipart()
            await self._socket.send_multipart([identity, b"ok"])
            try:
                self._note(identity, ShardStatus.model_validate_json(frames[1]))
            except (ValidationError, IndexError) as problem:
                _logger.warning("bad_announcement", problem=str(problem))
            async with self._changed:
                self._changed.notify_all()

    def _note(self, identity: bytes, status: ShardStatus) -> None:
        self._shards[status.owner] = identity, status, time.monotonic()
        for partition in status.partitions:
            self._place(partition, Location(partition.epoch, status.address, status.shard))

    def _place(self, partition: PartitionStatus, location: Location) -> None:
        number = partition.partition
        known = self._locations.get(number)
        if partition.state == "serving" and (known is None or location.epoch > known.epoch):
            self._locations[number] = location
            self._problems.pop(number, None)
            for listener in self._listeners:
                listener(number)
        elif partition.state == "stopped" and (known is None or location.epoch >= known.epoch or location.epoch < 0):
            self._locations.pop(number, None)
            self._problems[number] = partition.problem
