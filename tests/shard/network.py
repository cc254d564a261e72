"""The social network on a log in memory, with shards that a test steps by hand, and a clock that it sets."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from engram import App, Command, Position, Query, Unavailable
from engram.clock import Stopwatch
from engram.codec.codec import Codec
from engram.codec.record import Envelope, Kind, Origin, Record, encode_commands
from engram.image.home import Cold
from engram.image.image import Image
from engram.log.base import Entry, Log, Watch
from engram.log.memory import MemoryLog
from engram.log.partitioner import partition_of
from engram.model.effects import OutEvent
from engram.shard.policy import Policy
from engram.shard.replay import replay_until
from engram.shard.requests import (
    Answer,
    Ask,
    Incoming,
    PartitionStatus,
    Refusal,
    Replies,
    Response,
    ShardStatus,
    Stop,
)
from engram.shard.shard import Shard
from engram.snapshots.base import Loaded, SnapshotStore
from engram.snapshots.memory import MemorySnapshots
from engram.worker import NewWorker

from sample_apps.social import app as social

GATEWAY = b"gateway"
NEVER = 1_000_000_000  # commands between two snapshots
_REST_SECONDS = 60.0


class SetClock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now


class MemoryTransport:
    """See `engram.shard.requests.Transport`. Requests come from a queue, and everything said is kept."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.requests: deque[Incoming] = deque()
        self.sent: list[tuple[bytes, Response]] = []
        self.announced: list[ShardStatus] = []
        self.announced_for: list[ShardStatus] = []  # by somebody who watches the shard
        self.waits_ms: list[int] = []  # how long it was to wait at most, each time
        self.closed = False

    def poll(self, watch: Watch, timeout_ms: int) -> list[Incoming]:
        self.waits_ms.append(timeout_ms)
        taken = list(self.requests)
        self.requests.clear()
        return taken

    def send(self, receiver: bytes, response: Response) -> None:
        self.sent.append((receiver, response))

    def announce(self, status: ShardStatus) -> None:
        self.announced.append(status)

    def announcer(self) -> MemoryTransport:
        second = MemoryTransport(self.address)
        second.announced = self.announced_for
        return second

    def close(self) -> None:
        self.closed = True


class Faulty:
    """Comes before a log's class: its storage fails when told to.

    `full`: nothing can be appended. `unsure`: it is appended, and the caller is told that nobody knows.
    `forgetful`: it cannot say which messages it has. `unreadable`: no record can be read.
    """

    full = False
    unsure = False
    forgetful = False
    unreadable = False

    def append(self, entries: Sequence[Entry], events: Sequence[OutEvent] = ()) -> list[int]:
        if self.full:
            raise Unavailable("The disk is full.")
        offsets = super().append(entries, events)
        if self.unsure:
            raise Unavailable("Whether it was appended is not known.")
        return offsets

    def read(self, partition: int, offset: int, *, limit: int) -> list[Record]:
        if self.unreadable:
            raise Unavailable("The disk does not answer.")
        return super().read(partition, offset, limit=limit)

    def news(self, offsets: Mapping[int, int]) -> Collection[int]:
        if self.unreadable:
            raise Unavailable("The disk does not answer.")
        return super().news(offsets)

    def last_origin(self, partition: int, origin_partition: int) -> Origin | None:
        if self.forgetful:
            raise Unavailable("The disk does not answer.")
        return super().last_origin(partition, origin_partition)


class FaultyLog(Faulty, MemoryLog):
    """A log in memory that fails when told to."""


class Owner:
    """A shard and its end of the line."""

    def __init__(self, shard: Shard, line: MemoryTransport, log: Log) -> None:
        self.shard = shard
        self.line = line
        self._log = log
        self._asked = 0
        self._gone = False

    def step(self) -> bool:
        return self.shard.step(wait=False)

    def request(self, request: Any) -> None:
        self.line.requests.append(Incoming(GATEWAY, request))

    def ask(
        self,
        key: str,
        query: Query[Any, Any],
        *,
        at_least: Position | None = None,
        timeout_ms: int = 1000,
        partition: int | None = None,
    ) -> int:
        """Puts a query on the line and returns its id."""
        self._asked += 1
        where = partition_of(key, self._log.partitions) if partition is None else partition
        bound = None if at_least is None else (at_least.offset, at_least.index)
        body = query.model_dump_json().encode()
        name = query.__engram__.name or ""
        self.request(Ask(self._asked, where, key, name, query.__engram__.version, body, bound, timeout_ms))
        return self._asked

    def response(self, number: int) -> Answer | Refusal | None:
        """What was said to query `number`; None while nothing was."""
        said = [r for _, r in self.line.sent if isinstance(r, (Answer, Refusal)) and r.id == number]
        assert len(said) <= 1, "a query is answered once"
        return said[0] if said else None

    def replies(self) -> list[Replies]:
        return [response for _, response in self.line.sent if isinstance(response, Replies)]

    def partition(self, number: int) -> PartitionStatus:
        return self.shard.owned[number].status(digest=True)

    def image(self, partition: int) -> Image:
        return self.shard.owned[partition].image

    @property
    def states(self) -> dict[int, str]:
        return {number: owned.state for number, owned in self.shard.owned.items()}

    @property
    def at_rest(self) -> bool:
        """Whether there is nothing left to do in any partition that is served."""
        return all(
            owned.image.offset == self._log.end(number)
            and owned.image.freeze is None
            and not owned.taking.writing
            and not self.shard._outboxes[number].pending
            for number, owned in self.shard.owned.items()
            if owned.state == "serving"
        )

    def stop(self, *, clean: bool = True, savepoint: str = "") -> None:
        """Ends as a shard that is told to."""
        self.line.requests.append(Incoming(b"", Stop(clean=clean, savepoint=savepoint)))
        assert not self.step()
        self.shard.close()
        self._gone = True

    def kill(self) -> None:
        """Ends as SIGKILL ends a process: nothing is flushed, announced or snapshotted; only descriptors go."""
        if not self._gone:
            self._gone = True
            self.shard._flusher.close()
            for owned in self.shard.owned.values():
                if owned.handing_over:
                    owned.taking.passing.fail(Unavailable("killed"))
            self.shard._snapshotting._writer.close()
            self.shard._watch.close()


class Network:
    """An app on a log, with as many shards as a test starts."""

    def __init__(
        self,
        partitions: int = 4,
        *,
        app: App = social,
        log: Log | None = None,
        reopen: Callable[[], Log] | None = None,
        store: SnapshotStore | None = None,
    ) -> None:
        """`reopen` gives a shard the log as another process opens it; otherwise all share one."""
        self.app = app
        self.log = log or MemoryLog(app.name, partitions)
        self.store = store or MemorySnapshots(app.name)
        self.clock = SetClock()
        self.codec = Codec(app)
        self.owners: list[Owner] = []
        self._reopen = reopen
        self._opened: list[Log] = []
        self._sessions = 0

    def close(self) -> None:
        for owner in self.owners:
            owner.kill()
        for log in self._opened:
            log.close()

    # Shards

    def prepare(
        self,
        partitions: Iterable[int] | None = None,
        *,
        app: App | None = None,
        number: int = 0,
        snapshot_every: int = NEVER,
        snapshot_budget_ms: float = 5.0,
        snapshot_slice: int = 500,
        snapshot_share: float = math.inf,  # the clock here does not follow what work takes
        hot_entities: int = 0,
        missed_records: int = 100_000,
        cold: Callable[[], Cold] = dict,
        stopwatch: Stopwatch = time.perf_counter,
        new_worker: NewWorker | None = None,
        log: Log | None = None,
    ) -> Owner:
        """A shard that has not recovered yet; of all partitions if none are named."""
        if log is None and self._reopen is not None:
            log = self._reopen()
            self._opened.append(log)
        name = f"owner-{len(self.owners)}"
        line = MemoryTransport(f"memory:{name}")
        shard = Shard(
            app or self.app,
            number=number,
            partitions=range(self.log.partitions) if partitions is None else partitions,
            log=log or self.log,
            store=self.store,
            transport=line,
            clock=self.clock,
            owner=name,
            policy=Policy(
                snapshot_every=snapshot_every,
                snapshot_seconds=NEVER,
                snapshot_budget_ms=snapshot_budget_ms,
                snapshot_slice=snapshot_slice,
                snapshot_share=snapshot_share,
                hot_entities=hot_entities,
                missed_records=missed_records,
            ),
            cold=cold,
            stopwatch=stopwatch,
            new_worker=new_worker,
        )
        owner = Owner(shard, line, self.log)
        self.owners.append(owner)
        return owner

    def start(self, partitions: Iterable[int] | None = None, **how: Any) -> Owner:
        """A shard that has recovered."""
        owner = self.prepare(partitions, **how)
        assert owner.shard.recover()
        return owner

    def settle(self, *owners: Owner) -> None:
        """Steps the shards until none has anything left to do."""
        deadline = time.monotonic() + _REST_SECONDS
        while True:
            for owner in owners:
                owner.step()
            if all(owner.at_rest for owner in owners):
                return
            assert time.monotonic() < deadline, "the shards do not come to rest"

    # The log

    def send(self, key: str, command: Command[Any, Any], **more: Any) -> Position:
        """Appends a command as a gateway does, in a session of its own unless one is named."""
        return self.send_all([self.envelope(key, command, **more)])[0]

    def send_all(self, envelopes: Sequence[Envelope]) -> list[Position]:
        """Appends commands in one go: a record per partition."""
        places = [partition_of(envelope.key, self.log.partitions) for envelope in envelopes]
        partitions = sorted(set(places))
        batches = [[e for e, place in zip(envelopes, places, strict=True) if place == p] for p in partitions]
        entries = [
            Entry(partition, Kind.COMMANDS, self.clock(), encode_commands(batch, GATEWAY.decode()))
            for partition, batch in zip(partitions, batches, strict=True)
        ]
        offsets = dict(zip(partitions, self.log.append(entries), strict=True))
        return [Position(p, offsets[p], places[:i].count(p)) for i, p in enumerate(places)]

    def envelope(
        self,
        key: str,
        command: Command[Any, Any],
        *,
        session: str | None = None,
        sequence: int = 0,
        idempotency_key: str | None = None,
    ) -> Envelope:
        if session is None:
            self._sessions += 1
            session = f"s{self._sessions}"
        body = command.model_dump_json().encode()
        name, version = command.__engram__.name or "", command.__engram__.version
        return Envelope(name, version, key, body, session, sequence, idempotency_key)

    def home(self, key: str) -> int:
        return partition_of(key, self.log.partitions)

    def key_in(self, partition: int, nth: int = 0) -> str:
        """The nth of some keys that live in the partition."""
        found = (key for key in map("user{}".format, range(10_000)) if self.home(key) == partition)
        for _ in range(nth):
            next(found)
        return next(found)

    # Images

    def replayed(self, partition: int, loaded: Loaded | None = None) -> Image:
        """The partition from zero, or from a snapshot and the records after it."""
        image = Image(partition, self.codec)
        if loaded is not None:
            image.load_encoded(loaded.columns, loaded.memory)
        replay_until(image, self.log, self.log.end(partition), effects=lambda *_: None, progress=lambda: None)
        return image

    def snapshots(self, partition: int) -> list[Loaded]:
        """All that were published; the store in memory keeps them."""
        assert isinstance(self.store, MemorySnapshots)
        return self.store._snapshots.get(partition, [])
