"""A shard: the single-threaded owner of one or more partitions, from recovery to its end."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterable
from functools import partial

import structlog

from engram.clock import Clock, Stopwatch
from engram.codec.codec import Codec
from engram.errors import Corrupt, Fenced, Unavailable
from engram.image.home import Cold
from engram.image.image import Handled
from engram.log.base import Log
from engram.model.app import App
from engram.shard.determinism.touches import Touches
from engram.shard.end import end_epochs
from engram.shard.figures import RecoveryFigures
from engram.shard.flusher import Flusher
from engram.shard.garbage import collect_rarely, keep_what_is_there
from engram.shard.load import load
from engram.shard.missed import Missed
from engram.shard.orders import Orders
from engram.shard.outbox import Outbox
from engram.shard.owned import Owned
from engram.shard.policy import Policy
from engram.shard.replay import replay, take_over
from engram.shard.requests import (
    Await,
    Incoming,
    Question,
    Refusal,
    Report,
    Reported,
    ShardStatus,
    Stop,
    Subscription,
    TakeSnapshot,
    Transport,
)
from engram.shard.serve import Questions, answer_await, handle_new, subscribe
from engram.shard.snapshotting import Snapshotting
from engram.shard.spans import HandlingSpans
from engram.shard.watchdog import Watchdog
from engram.snapshots.base import SnapshotStore
from engram.worker import NewWorker, ThreadWorker, take_short_turns

# How long a shard sleeps at most. Appends and requests wake it at once; this is for what nobody tells it.
_NAP_MS = 500
_ANNOUNCE_MS = 500
# After so few records and commands the log is not looked into again at once, but after this time, or when its watch
# rings, as it does for whatever comes. Whoever waits for their replies may be waiting for this processor, too: to look
# takes as long as one command. What a ring could be missing for, waits so long at most.
_FEW = 32
_LOOK_AGAIN_MS = 5
# Entities gone through for new read models between two looks at the watch.
_BUILD_AT_ONCE = 20
# Encoding so many takes a few milliseconds; a turn that handles commands makes fewer.
_COOLED_AT_ONCE = 3000
# After a disk was full: work goes on in memory, and it is tried again.
_SPILL_PAUSE_MS = 10_000
# A successor takes a shard's partitions one after the other: those that it has not come to yet are served meanwhile, if
# it comes to the next within this time.
_TAKEN_MS = 10_000
# While somebody waits for a snapshot, or for its writer, it is looked at so often whether that is written.
_ORDERED_NAP_MS = 10

_logger = structlog.get_logger()


class Shard:
    """Owns `partitions` of `log`. All commands and queries are handled on the calling thread.

    `recover` once, then `step` again and again until it returns False, then `close`; `run` does all of it. With
    `background`, effects go to the log while commands and queries go on, and a watchdog looks for handlers that do not
    return; without, each `step` waits for the log, and nobody looks. `cold` makes places for encoded entities.

    What is done beside the loop is done by `new_worker`s, if they are given, and otherwise on threads. `codec` is the
    app's, for who starts many shards in one process: to make one takes a while.
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
        cold: Callable[[], Cold] = dict,
        background: bool = False,
        codec: Codec | None = None,
        stopwatch: Stopwatch = time.perf_counter,
        new_worker: NewWorker | None = None,
    ) -> None:
        self._codec = codec or Codec(app)
        self._stopwatch = stopwatch
        self._number = number
        self._owner = owner
        self._log = log
        self._store = store
        self._transport = transport
        self._clock = clock
        self._policy = policy or Policy()
        self._cold = cold
        self._questions = Questions(transport.send, clock)
        self._partitions = list(partitions)
        self._watch = log.watch(self._partitions)
        self._rung = select.poll()
        self._rung.register(self._watch.fileno(), select.POLLIN)
        self.owned: dict[int, Owned] = {}
        self._outboxes = {p: Outbox(p, log, clock) for p in self._partitions}
        beside = new_worker or ThreadWorker
        effects = beside("engram-effects") if background or new_worker is not None else None
        self._flusher = Flusher(self._outboxes, log, clock=clock, worker=effects, wake=self._watch.wake)
        limit = self._policy.stuck_after
        self._watchdog = Watchdog(self.owned, limit=limit, status=self.status, announcer=transport.announcer)
        self._watched = background
        self._orders = Orders(transport.send, clock)
        self._snapshotting = Snapshotting(
            self.owned,
            codec=self._codec,
            store=store,
            flusher=self._flusher,
            policy=self._policy,
            clock=clock,
            orders=self._orders,
            stopwatch=stopwatch,
            new_worker=beside,
        )
        self._missed = Missed(
            self._codec,
            store,
            log,
            policy=self._policy,
            send=transport.send,
            clock=clock,
            background=background,
            stopwatch=stopwatch,
        )
        self._spans = HandlingSpans.made(log, app, number)
        self._touches = Touches(app) if self._policy.guard else None
        self._announced = 0
        self._cool_after = 0
        self._busy = True
        self._few = False  # whether what keeps it busy is no more than a look whether there is more
        self._looked = 0  # into the log, by the clock
        self._look_anew = True  # at the log, whether its watch has rung or not
        self._stop: Stop | None = None
        self._seen: dict[int, int] = {}  # where each partition ended when this owner began
        self._taken = 0  # when the last of its partitions was taken from it, by the clock

    def run(self) -> None:
        """Recovers and serves until it is told to stop, or all its partitions are stopped.

        Raises `Fenced` when one was taken from it. Whoever looks after it, as Spark does, knows whether there is a
        successor, and starts it anew if not: so no partition stays without an owner because a dead one took it last,
        and two that are alive do not take it from each other for ever.
        """
        try:
            take_short_turns()
            collect_rarely()
            if self.recover():
                keep_what_is_there()
                while self.step():
                    pass
        finally:
            self.close()

    def recover(self) -> bool:
        """Takes every partition over and brings it up to date. False when it was told to stop meanwhile; raises
        `Fenced` when somebody else has taken one."""
        if self._watched:
            self._watchdog.start()
        self._seen = {partition: self._log.end(partition) for partition in self._partitions}
        for partition in self._partitions:
            self._recover(partition)
            if self.owned[partition].state == "moved":
                raise Fenced(self.owned[partition].problem)
            if self._stop is not None:
                return False
        self._flusher.turn()
        self._announce()
        return True

    def step(self, *, wait: bool = True) -> bool:
        """One turn: requests, new records, effects, snapshots. False when the shard's work is over; raises `Fenced` a
        while after a partition was taken from it."""
        self._turn(self._rest() if wait else self._transport.poll(self._watch, 0))
        self._snapshotting.go_on(self._serving())
        self._build_read_models()
        self._missed.go_on(self._serving())
        return self._stop is None and self._has_work()

    @property
    def pending(self) -> bool:
        """Whether something that was sent or let out is not durable yet."""
        return any(outbox.pending for outbox in self._outboxes.values())

    def begin_snapshot(self, partition: int) -> None:
        """Starts a snapshot of the partition now, whatever the policy says; `step` goes on with it."""
        self._snapshotting.begin(self.owned[partition])

    def close(self) -> None:
        """Ends; after a clean stop with a last snapshot of every partition that has changed, and a word in the log that
        says where this owner has ended."""
        if self._stop is not None and self._stop.clean:
            self._end_cleanly(self._stop.savepoint)
        self._flusher.close()
        self._snapshotting.close()
        self._announce()
        self._watchdog.close()
        self._watch.close()
        self._transport.close()
        self._log.close()

    def _end_cleanly(self, savepoint: str) -> None:
        self._snapshotting.expect_end(savepoint)
        self._finish_effects()
        end_epochs(self._serving(), self._log, owner=self._owner, clock=self._clock)
        while self._handle_new():
            if self._flusher.full:
                self._finish_effects()
        self._finish_effects()
        self._snapshotting.finish(self._serving())
        for owned in self._serving():
            # By records, not by handled commands: a record whose commands were all dropped as duplicates is
            # in the log after the snapshot too, and would bar the next version of the app.
            if savepoint or owned.image.changed > owned.snapshot:
                self._snapshotting.begin(owned, savepoint=savepoint)
        self._snapshotting.finish(self._serving())
        for owned in self._serving():
            owned.end_cleanly(savepoint)
        self._orders.look_again(self.owned)

    def _recover(self, partition: int) -> None:
        started = self._stopwatch()
        owned = self.owned[partition] = load(
            partition,
            self._codec,
            self._store,
            self._cold,
            partitions=self._log.partitions,
            around=None if self._touches is None else self._touches.around,
        )
        loaded, entities, offset = self._stopwatch(), owned.image.count(), owned.image.offset
        if owned.state != "stopped":
            address = self._transport.address
            seen = self._seen[partition]
            take_over(owned, self._log, owner=self._owner, address=address, clock=self._clock, seen=seen)
        replaying = self._stopwatch()
        if owned.state != "stopped":
            replay(owned, self._log, effects=partial(self._note_effects, owned), progress=self._breathe)
        if owned.state == "replaying":
            owned.state = "serving"
            self._look_anew = True  # its watch may have been cleared for others while it was replayed
            ended = self._stopwatch()
            owned.recovery = RecoveryFigures(
                load_ms=round((loaded - started) * 1000, 3),
                entities=entities,
                records=owned.image.offset - offset,
                replay_ms=round((ended - replaying) * 1000, 3),
                total_ms=round((ended - started) * 1000, 3),
            )
            _logger.info("recovered", partition=partition, **owned.recovery.model_dump())

    def _note_effects(self, owned: Owned, handled: Handled) -> None:
        """Of a record that is replayed: the last one that the image has handled."""
        outbox = self._outboxes[owned.partition]
        outbox.add(handled)
        owned.sent.add(owned.image.offset - 1, handled, outbox.last_of)

    # Turns

    def _rest(self) -> list[Incoming]:
        """Waits until there is something to do, and returns what is asked that is more than a question.

        Questions are answered meanwhile: an answer from live state changes nothing, so a turn for it would find all
        else as the last one has left it.
        """
        nap = self._nap()
        end = self._clock() + nap
        while True:
            incoming = self._transport.poll(self._watch, nap)
            left = [each for each in incoming if not self._questions.answered(each, self.owned)]
            nap = end - self._clock()
            if left or not incoming or nap <= 0 or self._has_rung():
                return left

    def _has_rung(self) -> bool:
        return bool(self._rung.poll(0))

    def _turn(self, asked: Iterable[Incoming]) -> None:
        for incoming in asked:
            self._serve(incoming)
        if self._busy or self._look_anew or self._has_rung() or self._clock() - self._looked >= _NAP_MS:
            before, started = self._handled(), self._stopwatch()
            handled = self._handle_new()
            self._busy, self._few = handled > 0, handled <= _FEW
            self._snapshotting.note_handled(self._handled() - before, self._stopwatch() - started)
        if self._policy.hot_entities:
            self._cool()
        if not self._busy:
            self._tell_the_time()
        self._flusher.turn()
        self._questions.look_again(self.owned)
        if self._clock() - self._announced >= _ANNOUNCE_MS:
            self._announce()

    def _cool(self) -> None:
        """Also while a partition is replayed: what comes out of a long log may not fit into memory."""
        if self._clock() < self._cool_after:
            return
        try:
            for owned in self.owned.values():
                if owned.image.cool(self._policy.hot_entities, _COOLED_AT_ONCE):
                    self._busy, self._few = True, False
        except OSError as problem:
            _logger.error("spill_failed", problem=str(problem), hint="entities stay in memory meanwhile")
            self._cool_after = self._clock() + _SPILL_PAUSE_MS

    def _breathe(self) -> None:
        """During a long replay of one partition: the others are served, and the registry hears of us."""
        self._turn(self._transport.poll(self._watch, 0))

    def _nap(self) -> int:
        if (self._busy and not self._few) or any(owned.copying or owned.building for owned in self._serving()):
            return 0
        moments = [owned.image.timers.next_due() for owned in self._serving() if not self._told(owned)]
        nearest = min(filter(None, [self._questions.next_deadline(), *moments]), default=None)
        looked_at = self._orders or any(owned.taking.waits for owned in self._serving())
        longest = min(_ORDERED_NAP_MS if looked_at else _NAP_MS, self._missed.nap_ms)
        longest = min(longest, _LOOK_AGAIN_MS) if self._busy else longest
        return longest if nearest is None else max(0, min(longest, nearest - self._clock()))

    def _serve(self, incoming: Incoming) -> None:
        request = incoming.request
        if isinstance(request, Stop):
            self._stop = request
        elif isinstance(request, Report):
            status = self.status(digests=request.digests)
            self._transport.send(incoming.sender, Reported(request.id, status))
        elif request.partition not in self.owned:
            if isinstance(request, Question | TakeSnapshot):
                text = f"Shard {self._number} does not own partition {request.partition}."
                self._transport.send(incoming.sender, Refusal(request.id, "moved", text))
        elif isinstance(request, Subscription):
            subscribe(incoming, request, self.owned[request.partition], self._transport.send, self._clock())
        elif isinstance(request, Await):
            replies = answer_await(request, self.owned[request.partition])
            if replies is not None:
                self._transport.send(incoming.sender, replies)
        elif isinstance(request, TakeSnapshot):
            self._orders.add(incoming, request, self.owned[request.partition])
        else:
            self._questions.ask(incoming, request, self.owned[request.partition])

    def _handle_new(self) -> int:
        # Cleared before reading: what is appended from here on wakes the next turn.
        self._watch.clear()
        self._looked = self._clock()
        handled = 0
        self._look_anew = self._flusher.full
        if self._look_anew:
            return 0
        for owned in self._with_news():
            handled += handle_new(owned, self._log, self._outboxes[owned.partition], self._transport.send, self._spans)
            self._look_anew |= owned.unsure
            if owned.state != "serving":
                self._flusher.drop(owned.partition)
                self._taken = self._clock()
                self._announced = 0  # tell the registry now, not in its turn
        return handled

    def _with_news(self) -> list[Owned]:
        serving = self._serving()
        if len(serving) == 1:
            return serving
        try:
            news = set(self._log.news({owned.partition: owned.image.offset for owned in serving if not owned.unread}))
        except (Corrupt, Unavailable):
            return serving  # each finds out for itself, and says so
        return [owned for owned in serving if owned.unread or owned.partition in news]

    def _handled(self) -> int:
        return sum([owned.image.handled for owned in self._serving()])

    def _has_work(self) -> bool:
        taken = [owned for owned in self.owned.values() if owned.state == "moved"]
        if taken and self._clock() - self._taken >= _TAKEN_MS:
            raise Fenced(taken[0].problem)
        return bool(taken or self._serving())

    def _tell_the_time(self) -> None:
        """A partition in which nothing happens gets a record with the time when a timer is due."""
        now = self._clock()
        for owned in self._serving():
            due = owned.image.timers.next_due()
            if due is not None and due <= now and not self._told(owned):
                owned.ticked = due, owned.image.offset
                self._outboxes[owned.partition].tick(now)

    def _build_read_models(self) -> None:
        """A slice of what is under way: commands and queries wait no longer than for one of a snapshot."""
        for owned in self._serving():
            deadline = self._stopwatch() + self._policy.snapshot_budget_ms / 1000
            while owned.building and owned.build(_BUILD_AT_ONCE) and self._stopwatch() < deadline:
                pass

    def _told(self, owned: Owned) -> bool:
        return owned.ticked == (owned.image.timers.next_due(), owned.image.offset)

    def _finish_effects(self) -> None:
        try:
            self._flusher.finish()
        except Unavailable as problem:
            _logger.warning("effects_wait", problem=str(problem))
            self._flusher.close()  # snapshots must not wait for what does not come

    # Status

    def status(self, *, digests: bool = False) -> ShardStatus:
        return ShardStatus(
            shard=self._number,
            owner=self._owner,
            pid=os.getpid(),
            address=self._transport.address,
            not_deterministic=[] if self._touches is None else list(self._touches.told),
            partitions=[
                owned.status(digest=digests and owned.state == "serving") for owned in list(self.owned.values())
            ],
        )

    def _announce(self) -> None:
        self._announced = now = self._clock()
        for owned in self._serving():
            owned.watched.expire(now)
        self._transport.announce(self.status())

    def _serving(self) -> list[Owned]:
        return [owned for owned in self.owned.values() if owned.state == "serving"]
