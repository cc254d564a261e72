"""A shard: the single-threaded owner of one or more partitions, from recovery to its end."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import structlog

from engram.clock import Clock
from engram.codec.codec import Codec
from engram.errors import Corrupt, Unavailable
from engram.log.base import Log
from engram.model.app import App
from engram.shard.flusher import Flusher
from engram.shard.garbage import collect_rarely
from engram.shard.load import load
from engram.shard.outbox import Outbox
from engram.shard.owned import Owned
from engram.shard.replay import replay, take_over
from engram.shard.requests import (
    Ask,
    Await,
    Incoming,
    Refusal,
    Report,
    Reported,
    ShardStatus,
    Stop,
    Transport,
)
from engram.shard.serve import Questions, answer_await, handle_new
from engram.snapshots.base import Contents, SnapshotStore
from engram.snapshots.writer import SnapshotWriter, Written

# How long a shard sleeps at most. Appends and requests wake it at once; this is for what nobody tells it.
_NAP_MS = 500
_ANNOUNCE_MS = 500
# Entities encoded for a snapshot between two looks at the log: about a millisecond.
_FREEZE_SLICE = 1000

_logger = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """When a partition is snapshotted: after so many handled commands, and no sooner than as many as it has
    entities, so that the copy costs at most one encoding per command. Never two at once."""

    snapshot_every: int = 20_000

    def due(self, commands: int, entities: int) -> bool:
        return commands >= max(self.snapshot_every, entities)


class Shard:
    """Owns `partitions` of `log`. All commands and queries are handled on the calling thread.

    `recover` once, then `step` again and again until it returns False, then `close`; `run` does all of it. With
    `background`, effects go to the log while commands and queries go on; without, each `step` waits for it.
    """

    def __init__(
        self,
        app: App,
        *,
        number: int,
        partitions: Iterable[int],
        log: Log,
        store: SnapshotStore,
        transport: Transport,
        clock: Clock,
        owner: str,
        policy: Policy | None = None,
        background: bool = False,
    ) -> None:
        self._codec = Codec(app)
        self._number = number
        self._owner = owner
        self._log = log
        self._store = store
        self._transport = transport
        self._clock = clock
        self._policy = policy or Policy()
        self._writer = SnapshotWriter(store, clock, verify=self._check_decodable)
        self._questions = Questions(transport.send, clock)
        self._partitions = list(partitions)
        self._watch = log.watch(self._partitions)
        self.owned: dict[int, Owned] = {}
        self._outboxes = {p: Outbox(p, log, clock) for p in self._partitions}
        wake = self._watch.wake if background else None
        self._flusher = Flusher(self._outboxes, log, clock=clock, wake=wake)
        self._announced = 0
        self._busy = True
        self._stop: Stop | None = None

    def run(self) -> None:
        """Recovers and serves until it is told to stop or has lost all its partitions."""
        try:
            if self.recover():
                collect_rarely()
                while self.step():
                    pass
        finally:
            self.close()

    def recover(self) -> bool:
        """Takes every partition over and brings it up to date. False when it was told to stop meanwhile."""
        for partition in self._partitions:
            owned = self.owned[partition] = load(partition, self._codec, self._store)
            if owned.state != "stopped":
                address = self._transport.address
                take_over(owned, self._log, owner=self._owner, address=address, clock=self._clock)
            if owned.state != "stopped":
                replay(owned, self._log, effects=self._outboxes[partition].add, progress=self._breathe)
            if owned.state != "stopped":
                owned.state = "serving"
            if self._stop is not None:
                return False
        self._flusher.turn()
        self._announce()
        return True

    def step(self, *, wait: bool = True) -> bool:
        """One turn: requests, new records, effects, snapshots. False when the shard's work is over."""
        self._turn(self._nap() if wait else 0)
        self._go_on_with_snapshots()
        return self._stop is None and bool(self._serving())

    def begin_snapshot(self, partition: int) -> None:
        """Starts a snapshot of the partition now, whatever the policy says; `step` goes on with it."""
        owned = self.owned[partition]
        if owned.image.freeze is None and not owned.writing:
            self._begin_snapshot(owned)

    def close(self) -> None:
        """Ends; after a clean stop with a last snapshot of every partition that has changed."""
        if self._stop is not None and self._stop.clean:
            self._finish_effects()
            self._finish_snapshots()
            for owned in self._serving():
                # By records, not by handled commands: a record whose commands were all dropped as duplicates is
                # in the log after the snapshot too, and would bar the next version of the app.
                if owned.image.changed > owned.snapshot:
                    self._begin_snapshot(owned)
            self._finish_snapshots()
        self._flusher.close()
        for written in self._writer.close():
            self._note_written(written)
        self._announce()
        self._watch.close()
        self._transport.close()
        self._log.close()

    # Turns

    def _turn(self, timeout: int) -> None:
        for incoming in self._transport.poll(self._watch, timeout):
            self._serve(incoming)
        self._busy = self._handle_new()
        if not self._busy:
            self._tell_the_time()
        self._flusher.turn()
        self._questions.look_again(self.owned)
        if self._clock() - self._announced >= _ANNOUNCE_MS:
            self._announce()

    def _breathe(self) -> None:
        """During a long replay of one partition: the others are served, and the registry hears of us."""
        self._turn(0)

    def _nap(self) -> int:
        if self._busy or any(owned.image.freeze is not None for owned in self._serving()):
            return 0
        moments = [owned.image.timers.next_due() for owned in self._serving() if not self._told(owned)]
        nearest = min(filter(None, [self._questions.next_deadline(), *moments]), default=None)
        return _NAP_MS if nearest is None else max(0, min(_NAP_MS, nearest - self._clock()))

    def _serve(self, incoming: Incoming) -> None:
        request = incoming.request
        if isinstance(request, Stop):
            self._stop = request
        elif isinstance(request, Report):
            status = self.status(digests=request.digests)
            self._transport.send(incoming.sender, Reported(request.id, status))
        elif request.partition not in self.owned:
            if isinstance(request, Ask):
                text = f"Shard {self._number} does not own partition {request.partition}."
                self._transport.send(incoming.sender, Refusal(request.id, "moved", text))
        elif isinstance(request, Await):
            replies = answer_await(request, self.owned[request.partition])
            if replies is not None:
                self._transport.send(incoming.sender, replies)
        else:
            self._questions.ask(incoming, request, self.owned[request.partition])

    def _handle_new(self) -> bool:
        # Cleared before reading: what is appended from here on wakes the next turn.
        self._watch.clear()
        busy = False
        if self._flusher.full:
            return busy
        for owned in self._serving():
            busy |= handle_new(owned, self._log, self._outboxes[owned.partition], self._transport.send)
            if owned.state != "serving":
                self._flusher.drop(owned.partition)
                self._announced = 0  # tell the registry now, not in its turn
        return busy

    def _tell_the_time(self) -> None:
        """A partition in which nothing happens gets a record with the time when a timer is due."""
        now = self._clock()
        for owned in self._serving():
            due = owned.image.timers.next_due()
            if due is not None and due <= now and not self._told(owned):
                owned.ticked = due, owned.image.offset
                self._outboxes[owned.partition].tick(now)

    def _told(self, owned: Owned) -> bool:
        return owned.ticked == (owned.image.timers.next_due(), owned.image.offset)

    def _finish_effects(self) -> None:
        try:
            self._flusher.finish()
        except Unavailable as problem:
            _logger.warning("effects_wait", problem=str(problem))
            self._flusher.close()  # snapshots must not wait for what does not come

    # Snapshots

    def _go_on_with_snapshots(self) -> None:
        for written in self._writer.written():
            self._note_written(written)
        for owned in self._serving():
            if owned.image.freeze is not None:
                self._advance_snapshot(owned)
            elif not owned.writing and self._policy.due(
                owned.image.handled - owned.snapshot_handled, owned.image.count()
            ):
                self._begin_snapshot(owned)

    def _begin_snapshot(self, owned: Owned) -> None:
        owned.snapshot_handled = owned.image.handled
        owned.effects = self._flusher.mark()
        owned.image.begin_freeze()

    def _advance_snapshot(self, owned: Owned) -> bool:
        """A slice of the freeze; when it is whole, off to the writer. True when there is more."""
        freeze = owned.image.freeze
        if freeze is None:
            return False
        try:
            if freeze.advance(_FREEZE_SLICE):
                return True
        except Exception as problem:  # noqa: BLE001 - a value of the wrong type in the state: told, and work goes on
            self._note_written(Written(owned.partition, None, problem))
        else:
            owned.writing = True
            # A snapshot says that its effects are out.
            effects = partial(self._flusher.wait, owned.effects)
            self._writer.submit(owned.partition, Contents(freeze.rows, freeze.memory), after=effects)
        owned.image.end_freeze()
        return False

    def _finish_snapshots(self) -> None:
        for owned in self._serving():
            while self._advance_snapshot(owned):
                pass
        for written in self._writer.close():
            self._note_written(written)

    def _check_decodable(self, contents: Contents) -> None:
        """On the writer's thread. A handler can put a value into a field that encodes and does not come back."""
        for row in contents.entities:
            try:
                self._codec.decode_entity(row.entity, row.version, row.state)
            except Corrupt as problem:
                raise Corrupt(f"{row.entity} {row.key!r} holds what cannot be read back: {problem}") from problem

    def _note_written(self, written: Written) -> None:
        owned = self.owned[written.partition]
        owned.writing = False
        if written.manifest is None:
            _logger.error("snapshot_failed", partition=written.partition, problem=str(written.problem))
        else:
            owned.snapshot = written.manifest.offset
            _logger.info("snapshot_published", partition=written.partition, offset=owned.snapshot)

    # Status

    def status(self, *, digests: bool = False) -> ShardStatus:
        return ShardStatus(
            shard=self._number,
            owner=self._owner,
            pid=os.getpid(),
            address=self._transport.address,
            partitions=[owned.status(digest=digests and owned.state == "serving") for owned in self.owned.values()],
        )

    def _announce(self) -> None:
        self._announced = self._clock()
        self._transport.announce(self.status())

    def _serving(self) -> list[Owned]:
        return [owned for owned in self.owned.values() if owned.state == "serving"]
