"""Snapshots of a shard's partitions, taken while it works."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from functools import partial

import structlog

from engram.clock import Clock, Stopwatch
from engram.codec.codec import Codec
from engram.errors import Corrupt, Unavailable
from engram.image.contents import EntityColumns
from engram.image.freeze import Freeze
from engram.shard.figures import snapshot_figures
from engram.shard.flusher import Flusher
from engram.shard.orders import Orders
from engram.shard.owned import Owned, Taking
from engram.shard.policy import Policy
from engram.shard.toll import Toll
from engram.snapshots.base import Contents, SnapshotStore
from engram.snapshots.passing import Passing
from engram.snapshots.slices import SLICE_BYTES
from engram.snapshots.writer import SnapshotWriter, Written
from engram.worker import NewWorker, ThreadWorker

# When it is told that a snapshot is still being written: its store is slow, or hangs.
_SLOW_MS = 30_000
# The part of the budget that the entities encoded between two looks at the watch may take.
_SLICE_SHARE = 0.2
# At a stop: while a store is slow, it is looked at so often whether it has caught up.
_WRITER_NAP_S = 0.005

_logger = structlog.get_logger()


class Snapshotting:
    """Begins snapshots by policy and on order, encodes in slices between commands, and hands what is whole to a
    background writer.

    What goes wrong is told, and what was in that snapshot is in the next one.
    """

    def __init__(
        self,
        owned: Mapping[int, Owned],
        *,
        codec: Codec,
        store: SnapshotStore,
        flusher: Flusher,
        policy: Policy,
        clock: Clock,
        orders: Orders,
        stopwatch: Stopwatch = time.perf_counter,
        new_worker: NewWorker = ThreadWorker,
    ) -> None:
        self._owned = owned
        self._orders = orders
        self._codec = codec
        self._flusher = flusher
        self._policy = policy
        self._toll = Toll(policy)
        self._clock = clock
        self._stopwatch = stopwatch
        self._slice_bytes = SLICE_BYTES
        self._stop_by: float | None = None
        self._writer = SnapshotWriter(store, clock, verify=partial(check_decodable, codec), new_worker=new_worker)

    def go_on(self, serving: Iterable[Owned]) -> None:
        """A slice of what is under way, and what is due begins."""
        self._note_written()
        for owned in serving:
            taking = owned.taking
            if taking.ended is None:
                taking.ended = self._clock()
            if taking.writing and not taking.slow and self._clock() - taking.since > _SLOW_MS:
                taking.slow = True
                _logger.warning("snapshot_slow", partition=owned.partition, since=taking.since)
            under_way = _under_way(owned)
            due = self._due(owned, under_way=under_way)
            if under_way and due and not taking.behind:
                taking.behind = True
                _logger.warning("snapshot_behind", partition=owned.partition, offset=owned.image.offset)
            if owned.image.freeze is not None:
                self._advance(owned)
            elif not under_way:
                order = self._orders.begin_next(owned.partition)
                if order is not None:
                    self.begin(owned, savepoint=order.savepoint)
                    taking.ordered = True
                elif due:
                    self.begin(owned)
        self._orders.look_again(self._owned)

    def _note_written(self) -> None:
        """What the writer has ended; and it must not wait for more of a partition that is not served any more."""
        for written in self._writer.written():
            self._note(written)
        for owned in self._owned.values():
            if owned.state != "serving" and owned.handing_over:
                self._break_off(owned, Unavailable("It is not served here any more."))

    def note_handled(self, commands: int, seconds: float) -> None:
        """So many were handled since this was told last, and took so long."""
        serving = (owned for owned in self._owned.values() if owned.state == "serving")
        self._toll.handled(commands, seconds, under_way=any(map(_under_way, serving)))

    def begin(self, owned: Owned, *, savepoint: str = "") -> None:
        """Starts a snapshot now, unless one is under way. One with a name is whole."""
        taking = owned.taking
        if _under_way(owned):
            return
        started = self._stopwatch()
        taking.began = self._clock()
        taking.behind = taking.ordered = False
        taking.handled = owned.image.handled
        taking.effects = self._flusher.mark()
        taking.base = owned.manifest
        taking.savepoint = savepoint
        taking.passing = None
        taking.freeze = owned.image.begin_freeze(whole=owned.manifest is None or bool(savepoint))
        taking.total = owned.image.count()
        taking.pause = self._stopwatch() - started
        self._toll.add(taking.pause)

    def expect_end(self, savepoint: str) -> None:
        """From here on the time for a stop runs."""
        policy = self._policy
        self._stop_by = time.monotonic() + (policy.savepoint_within if savepoint else policy.stop_within)

    def finish(self, serving: Iterable[Owned]) -> None:
        """Returns when everything that is under way has ended, or the time for a stop is up."""
        left = list(serving)
        # In turns: the writer may be waiting for more of any of them.
        while left := [owned for owned in left if self._advance(owned)]:
            if all(owned.taking.waits for owned in left):
                self._wait_for_writer(left)
        self.close()

    def close(self) -> None:
        for owned in self._owned.values():
            if owned.handing_over:
                self._break_off(owned, Unavailable("Its shard has stopped."))
        for written in self._writer.close(self._left()):
            self._note(written)

    def _left(self) -> float:
        """How long a stop may still take."""
        if self._stop_by is None:
            self.expect_end("")
        assert self._stop_by is not None
        return self._stop_by - time.monotonic()

    def _wait_for_writer(self, waiting: list[Owned]) -> None:
        self._note_written()
        if self._left() > 0:
            time.sleep(_WRITER_NAP_S)
            return
        for owned in waiting:
            self._break_off(owned, Unavailable("The snapshot store has not taken it in time."))

    def _due(self, owned: Owned, *, under_way: bool) -> bool:
        """Whether it is time for the next one; while one is under way, whether that falls behind."""
        taking = owned.taking
        if taking.failures and not under_way:
            return self._clock() >= taking.retry_at
        since = taking.began if under_way else taking.ended or 0
        now = self._clock()
        due = self._policy.due(owned.image.handled - taking.handled, (now - since) / 1000)
        return due and (under_way or self._toll.is_over(now))

    def _advance(self, owned: Owned) -> bool:
        """A slice of the freeze; when it is whole, off to the writer. True when there is more.

        A large one is handed over bit by bit, and goes on only as the writer does: so it is never in memory as a whole.
        """
        freeze, taking = owned.image.freeze, owned.taking
        if freeze is None:
            return False
        budget = self._policy.snapshot_budget_ms / 1000
        started = now = self._stopwatch()
        most, more = self._policy.snapshot_slice, True
        try:
            while not taking.waits and (more := freeze.advance(min(taking.at_once, most))):
                if freeze.size >= self._slice_bytes:
                    self._hand_over(owned, freeze)
                before, now = now, self._stopwatch()
                if now - before > _SLICE_SHARE * budget:
                    taking.at_once = max(1, taking.at_once // 2)
                elif taking.at_once < most:
                    taking.at_once *= 2
                if now - started >= budget:
                    break
        except Exception as problem:  # noqa: BLE001 - a value of the wrong type in the state: told, and work goes on
            self._break_off(owned, problem)
            return False
        paused = self._stopwatch() - started
        taking.paused(paused)
        self._toll.add(paused)
        if not more:
            self._hand_over(owned, freeze, last=True)
            owned.image.end_freeze()
        return more

    def _hand_over(self, owned: Owned, freeze: Freeze, *, last: bool = False) -> None:
        """What the freeze has by now; the first time, the writer begins."""
        taking, passing = owned.taking, owned.taking.passing or Passing()
        passing.give(freeze.hand_over())
        if last:
            passing.end()
        if taking.passing is None:
            taking.passing = passing
            taking.writing, taking.since, taking.slow = True, self._clock(), False
            # A snapshot says that its effects are out.
            effects = partial(self._flusher.wait, taking.effects, owned.partition)
            watch = self._stopwatch
            contents = partial(_contents, freeze, taking, passing, handed_over=watch(), stopwatch=watch)
            self._writer.submit(owned.partition, contents, after=effects)

    def _break_off(self, owned: Owned, problem: Exception) -> None:
        """The copy cannot become whole."""
        if owned.taking.passing is None:
            self._note(Written(owned.partition, None, problem))
        else:
            owned.taking.passing.fail(problem)  # the writer tells what has come of it
        owned.image.end_freeze()

    def _note(self, written: Written) -> None:
        owned = self._owned[written.partition]
        taking, manifest = owned.taking, written.manifest
        taking.writing = taking.behind = False
        taking.ended = self._clock()
        self._toll.rest(taking.ended, free=taking.ordered)
        if manifest is None:
            owned.image.end_freeze()  # the writer may have failed before all was given to it
            if taking.freeze is not None:
                taking.freeze.give_back()
            if isinstance(written.problem, Corrupt):
                owned.manifest = None  # its base may be what is wrong: the next one is whole
            taking.failed += 1
            taking.failures += 1
            taking.problem = str(written.problem)
            pause = self._policy.retry_pause(taking.failures)
            taking.retry_at = self._clock() + int(1000 * pause)
            _logger.error(
                "snapshot_failed",
                partition=written.partition,
                problem=taking.problem,
                failures=taking.failures,
                again_in_s=pause,
            )
            self._orders.fail(written.partition, written.problem)
        else:
            taking.published += 1
            taking.failures, taking.problem = 0, ""
            owned.snapshot = manifest.offset
            owned.manifest = manifest
            owned.figures = snapshot_figures(manifest)
            savepoint = {"savepoint": manifest.savepoint} if manifest.savepoint else {}
            _logger.info("snapshot_published", partition=written.partition, **owned.figures.model_dump(), **savepoint)
            self._orders.fill(manifest)
        taking.freeze = taking.passing = None


def _under_way(owned: Owned) -> bool:
    return owned.image.freeze is not None or owned.taking.writing


def check_decodable(codec: Codec, columns: EntityColumns) -> None:
    """Raises `Corrupt` for a state that cannot be read back: a handler can put a value into a field that encodes and
    does not come back."""
    name, version, keys, states, _ = columns
    if name in codec.certain_states:
        return
    for key, state in zip(keys, states, strict=True):
        try:
            codec.decode_entity(name, version, state)
        except Corrupt as problem:
            raise Corrupt(f"{name} {key!r} holds what cannot be read back: {problem}") from problem


def _contents(
    freeze: Freeze, taking: Taking, passing: Passing, *, handed_over: float, stopwatch: Stopwatch
) -> Contents:
    base = None if freeze.whole else taking.base
    return Contents(
        passing,
        freeze.memory,
        taking.total,
        base,
        taking.savepoint,
        pause_ms=lambda: taking.pause * 1000,
        handed_over=handed_over,
        expected=freeze.expected,
        stopwatch=stopwatch,
    )
