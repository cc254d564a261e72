"""Snapshots of a shard's partitions, taken while it works."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from functools import partial

import structlog

from engram.clock import Clock, Stopwatch
from engram.codec.codec import Codec
from engram.errors import Corrupt
from engram.image.freeze import Freeze
from engram.shard.figures import snapshot_figures
from engram.shard.flusher import Flusher
from engram.shard.orders import Orders
from engram.shard.owned import Owned, Taking
from engram.shard.policy import Policy
from engram.snapshots.base import Contents, SnapshotStore
from engram.snapshots.writer import SnapshotWriter, Written
from engram.worker import NewWorker, ThreadWorker

# What the shard loses while the writer's thread works beside it: Arrow and Parquet need Python's lock now and then.
_SLOWED_BY_WRITING = 0.3
# When it is told that a snapshot is still being written: its store is slow, or hangs.
_SLOW_MS = 30_000

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
        self._clock = clock
        self._stopwatch = stopwatch
        self._stop_by: float | None = None
        self._writer = SnapshotWriter(store, clock, verify=self._check_decodable, new_worker=new_worker)

    def go_on(self, serving: Iterable[Owned]) -> None:
        """A slice of what is under way, and what is due begins."""
        for written in self._writer.written():
            self._note(written)
        for owned in serving:
            taking = owned.taking
            if taking.ended is None:
                taking.ended = self._clock()
            if taking.writing and not taking.slow and self._clock() - taking.since > _SLOW_MS:
                taking.slow = True
                _logger.warning("snapshot_slow", partition=owned.partition, since=taking.since)
            under_way = owned.image.freeze is not None or taking.writing
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
                elif due:
                    self.begin(owned)
        self._orders.look_again(self._owned)

    def begin(self, owned: Owned, *, savepoint: str = "") -> None:
        """Starts a snapshot now, unless one is under way. One with a name is whole."""
        taking = owned.taking
        if owned.image.freeze is not None or taking.writing:
            return
        started = self._stopwatch()
        taking.began = self._clock()
        taking.behind = False
        taking.handled = owned.image.handled
        taking.effects = self._flusher.mark()
        taking.base = owned.manifest
        taking.savepoint = savepoint
        taking.freeze = owned.image.begin_freeze(whole=owned.manifest is None or bool(savepoint))
        taking.total = owned.image.count()
        taking.pause = taking.cost = self._stopwatch() - started

    def finish(self, serving: Iterable[Owned]) -> None:
        """Returns when everything that is under way has ended, or the time for a stop is up."""
        for owned in serving:
            while self._advance(owned):
                pass
        self.close()

    def close(self) -> None:
        if self._stop_by is None:
            self._stop_by = time.monotonic() + self._policy.stop_within
        for written in self._writer.close(self._stop_by - time.monotonic()):
            self._note(written)

    def _due(self, owned: Owned, *, under_way: bool) -> bool:
        """Whether it is time for the next one; while one is under way, whether that falls behind."""
        taking = owned.taking
        if taking.failures and not under_way:
            return self._clock() >= taking.retry_at
        since, cost = (taking.began, 0.0) if under_way else (taking.ended or 0, taking.cost)
        return self._policy.due(owned.image.handled - taking.handled, (self._clock() - since) / 1000, cost)

    def _advance(self, owned: Owned) -> bool:
        """A slice of the freeze; when it is whole, off to the writer. True when there is more."""
        freeze, taking = owned.image.freeze, owned.taking
        if freeze is None:
            return False
        started = self._stopwatch()
        deadline = started + self._policy.snapshot_budget_ms / 1000
        try:
            while freeze.advance(self._policy.snapshot_slice):
                if self._stopwatch() >= deadline:
                    taking.paused(self._stopwatch() - started)
                    return True
        except Exception as problem:  # noqa: BLE001 - a value of the wrong type in the state: told, and work goes on
            self._note(Written(owned.partition, None, problem))
        else:
            taking.writing, taking.since, taking.slow = True, self._clock(), False
            # A snapshot says that its effects are out.
            effects = partial(self._flusher.wait, taking.effects, owned.partition)
            now = self._stopwatch()
            pause_ms = max(taking.pause, now - started) * 1000
            contents = partial(_contents, freeze, taking, pause_ms=pause_ms, handed_over=now, stopwatch=self._stopwatch)
            self._writer.submit(owned.partition, contents, after=effects)
        taking.paused(self._stopwatch() - started)
        owned.image.end_freeze()
        return False

    def _check_decodable(self, contents: Contents) -> None:
        """On the writer's thread. A handler can put a value into a field that encodes and does not come back."""
        if self._codec.certain_states == self._codec.app.entities.keys():
            return
        for name, version, keys, states, _ in contents.columns:
            if name in self._codec.certain_states:
                continue
            for key, state in zip(keys, states, strict=True):
                try:
                    self._codec.decode_entity(name, version, state)
                except Corrupt as problem:
                    raise Corrupt(f"{name} {key!r} holds what cannot be read back: {problem}") from problem

    def _note(self, written: Written) -> None:
        owned = self._owned[written.partition]
        taking, manifest = owned.taking, written.manifest
        taking.writing = taking.behind = False
        taking.ended = self._clock()
        if manifest is None:
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
            taking.cost += _SLOWED_BY_WRITING * manifest.background_ms / 1000
            owned.snapshot = manifest.offset
            owned.manifest = manifest
            owned.figures = snapshot_figures(manifest)
            savepoint = {"savepoint": manifest.savepoint} if manifest.savepoint else {}
            _logger.info("snapshot_published", partition=written.partition, **owned.figures.model_dump(), **savepoint)
            self._orders.fill(manifest)
        taking.freeze = None


def _contents(freeze: Freeze, taking: Taking, *, pause_ms: float, handed_over: float, stopwatch: Stopwatch) -> Contents:
    base = None if freeze.whole else taking.base
    return Contents(
        freeze.columns,
        freeze.memory,
        taking.total,
        base,
        taking.savepoint,
        pause_ms=pause_ms,
        handed_over=handed_over,
        stopwatch=stopwatch,
    )
