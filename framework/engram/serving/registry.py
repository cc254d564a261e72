"""The registry: which shard serves a partition, and where. Shards announce themselves; gateways look up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

import structlog
import zmq
import zmq.asyncio
from pydantic import BaseModel, ConfigDict, ValidationError

from engram.errors import Misuse
from engram.serving.curve import LineKeys, listen_with
from engram.serving.heads import LINE_VERSION
from engram.serving.wire import encode_request
from engram.shard.requests import PartitionStatus, ShardStatus, Stop

# Who speaks when a shard cannot.
_WATCHDOG = b"watchdog"

_logger = structlog.get_logger()


class Doors(NamedTuple):
    """Where a shard answers: to everybody, and directly, if it does. Only both together tell it from one before it: a
    port that was given back is soon somebody else's."""

    address: str
    direct: str


class Location(NamedTuple):
    """Where a partition is served. Of two, the one with the greater epoch is right."""

    epoch: int
    address: str
    shard: int
    direct: str = ""

    @property
    def doors(self) -> Doors:
        return Doors(self.address, self.direct)


# What somebody says who wants to know where everything is, and what the answer begins with.
WHERE = b"where"


class Whereabouts(BaseModel):
    """What the registry tells those who ask shards themselves. `line` is the version of the lines; `problems` has the
    partitions that are stopped, and `stuck` those whose shard is held up, with the reason."""

    model_config = ConfigDict(frozen=True)

    line: int
    app: str
    partitions: int
    locations: dict[int, Location]
    problems: dict[int, str]
    stuck: dict[int, str]


class Registry:
    """Hears from all shards of an application. Lives on one event loop; listens on loopback unless told otherwise.

    With `keys`, only those are heard who have them; whoever talks to the shards needs them too.
    """

    def __init__(self, *, host: str = "127.0.0.1", port: int = 0, keys: LineKeys | None = None) -> None:
        """Port 0 takes a free one. Raises `Misuse` for one that cannot be had."""
        self.keys = keys
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 1000)
        listen_with(keys, self._socket)
        self.address = self._bound(host, port)
        self._shards: dict[str, tuple[bytes, ShardStatus, float]] = {}  # by owner
        self._locations: dict[int, Location] = {}
        self._problems: dict[int, str] = {}
        self._about = "", 0
        self._listeners: list[Callable[[int], None]] = []
        self._stuck_listeners: list[Callable[[PartitionStatus], None]] = []
        self._touch_listeners: list[Callable[[str], None]] = []
        self._changed = asyncio.Condition()
        self._stop: list[bytes] = []  # what shards are told that are to stop
        self._told: set[bytes] = set()
        self._task: asyncio.Task[None] | None = None

    def _bound(self, host: str, port: int) -> str:
        if not port:
            port = self._socket.bind_to_random_port(f"tcp://{host}")
            return f"tcp://{host}:{port}"
        try:
            self._socket.bind(f"tcp://{host}:{port}")
        except zmq.ZMQError as problem:
            self._context.destroy(linger=0)
            raise port_taken(host, port, problem.strerror) from problem
        return f"tcp://{host}:{port}"

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    def tells_of(self, app: str, partitions: int) -> None:
        """From here on, who asks is told where the partitions of this app are."""
        self._about = app, partitions

    def whereabouts(self) -> Whereabouts:
        app, partitions = self._about
        held_up = {partition: self.stuck(partition) for partition in range(partitions)}
        return Whereabouts(
            line=LINE_VERSION,
            app=app,
            partitions=partitions,
            locations=self._locations,
            problems=self._problems,
            stuck={partition: why for partition, why in held_up.items() if why},
        )

    def lookup(self, partition: int) -> Location | None:
        """Where the partition is served now, as far as is known."""
        return self._locations.get(partition)

    def doors(self) -> set[Doors]:
        """Of all shards that are known, and of those before them where partitions are served still."""
        return {Doors(shard.address, shard.direct) for shard in self.shards()} | {
            location.doors for location in self._locations.values()
        }

    def partitions_at(self, doors: Doors) -> list[int]:
        """What is served there now."""
        return [partition for partition, location in self._locations.items() if location.doors == doors]

    def problem(self, partition: int) -> str:
        """Why the partition is stopped; empty if it is not."""
        return self._problems.get(partition, "")

    def stuck(self, partition: int) -> str:
        """Why a partition that is served does not answer: a handler of its shard does not return. Empty if none."""
        for status in self.shards():
            if any(of.partition == partition for of in status.partitions):
                return next((of.problem for of in status.partitions if of.stuck is not None), "")
        return ""

    def on_stuck(self, listener: Callable[[PartitionStatus], None]) -> None:
        """Calls `listener` with every partition in which a handler is stuck, once, and once more when it has returned:
        then its `stuck` is None."""
        self._stuck_listeners.append(listener)

    def on_touch(self, listener: Callable[[str], None]) -> None:
        """Calls `listener` with what a handler has touched that makes it non-deterministic; once for each shard."""
        self._touch_listeners.append(listener)

    def on_move(self, listener: Callable[[int], None]) -> None:
        """Calls `listener` with every partition that gets a new location."""
        self._listeners.append(listener)

    def shards(self) -> list[ShardStatus]:
        """The newest status of every shard, with the current owners only, and for how long each is silent."""
        newest: dict[int, tuple[float, ShardStatus]] = {}
        for _, status, heard in self._shards.values():
            if status.shard not in newest or heard > newest[status.shard][0]:
                newest[status.shard] = heard, status
        now = time.monotonic()
        return [
            status.model_copy(update={"silent_s": round(now - heard, 1)})
            for _, (heard, status) in sorted(newest.items())
        ]

    async def wait_until(self, ready: Callable[[], bool], seconds: float) -> bool:
        """Waits until `ready` holds; it is looked at after every change."""
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(ready)
        except TimeoutError:
            return False
        return True

    async def stop_shards(self, *, clean: bool, savepoint: str = "") -> None:
        """Those that are there, and whoever comes from here on: a shard may just be on its way to take the place of
        another."""
        self._stop = encode_request(Stop(clean, savepoint))
        for identity, _, _ in list(self._shards.values()):
            await self._tell_to_stop(identity)

    async def _tell_to_stop(self, identity: bytes) -> None:
        if self._stop and identity and identity not in self._told:
            self._told.add(identity)
            await self._socket.send_multipart([identity, *self._stop])

    async def last_words(self, partitions: int, seconds: float) -> list[PartitionStatus]:
        """What partitions whose shards were told to stop said last: as soon as all have ended, or the time is over."""

        def ended() -> list[PartitionStatus]:
            return [of for shard in self.shards() for of in shard.partitions if of.state in ("ended", "stopped")]

        await self.wait_until(lambda: len({of.partition for of in ended()}) == partitions, seconds)
        return ended()

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._context.destroy(linger=0)

    async def _run(self) -> None:
        while True:
            identity, *frames = await self._socket.recv_multipart()
            if frames[:1] == [WHERE]:
                told = self.whereabouts().model_dump_json().encode()
                await self._socket.send_multipart([identity, WHERE, told])
                continue
            await self._socket.send_multipart([identity, b"ok"])
            try:
                self._note(identity, frames[0], ShardStatus.model_validate_json(frames[1]))
            except (ValidationError, IndexError) as problem:
                _logger.warning("bad_announcement", problem=str(problem))
            if frames[:1] != [_WATCHDOG]:
                await self._tell_to_stop(identity)
            async with self._changed:
                self._changed.notify_all()

    def _note(self, identity: bytes, speaker: bytes, status: ShardStatus) -> None:
        known, before, _ = self._shards.get(status.owner, (b"", None, 0.0))
        # A watchdog speaks of the shard, but does not do what that is told.
        self._shards[status.owner] = known if speaker == _WATCHDOG else identity, status, time.monotonic()
        self._tell_stuck(before, status)
        told = 0 if before is None else len(before.not_deterministic)
        for text in status.not_deterministic[told:]:
            for listener in self._touch_listeners:
                listener(text)
        for partition in status.partitions:
            self._place(partition, Location(partition.epoch, status.address, status.shard, status.direct))

    def _tell_stuck(self, before: ShardStatus | None, status: ShardStatus) -> None:
        stuck = set() if before is None else {of.partition for of in before.partitions if of.stuck is not None}
        for partition in status.partitions:
            if (partition.stuck is not None) != (partition.partition in stuck):
                for listener in self._stuck_listeners:
                    listener(partition)

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
        elif partition.state == "ended" and known is not None and location.epoch >= known.epoch:
            self._locations.pop(number)


def port_taken(host: str, port: int, why: str | None) -> Misuse:
    return Misuse(f"Port {port} on {host} cannot be used ({why}): choose another with --registry-port.")
