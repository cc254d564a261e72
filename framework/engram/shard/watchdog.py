"""A watchdog: finds a handler that does not return, and tells where it is.

It stops nothing: a handler that is ended from outside would end elsewhere on the next replay.
"""

from __future__ import annotations

import faulthandler
import sys
import threading
import time
from collections.abc import Callable, Mapping

import structlog

from engram.codec.record import Record
from engram.image.running import running_in
from engram.shard.owned import Owned
from engram.shard.requests import Announcer, PartitionStatus, ShardStatus, Stuck

# How often it looks; more often if the limit is short.
_LOOK_S = 1.0
# It is said again after twice the time, and then twice that, but not more rarely than this.
_LONGEST_PAUSE_S = 3600.0
# A look takes no longer; a registry that does not listen is not waited for.
_END_S = 5.0

_logger = structlog.get_logger()


class _Watched:
    """A record in hand: since when, as far as was seen, and when it is to be reported next."""

    def __init__(self, record: Record, now: float, limit: float) -> None:
        self.record = record
        self.since = now
        self.report_at = now + limit
        self.reported: Stuck | None = None


class Watchdog:
    """Watches the thread that calls `start`, from a thread of its own, until `close`.

    It compares what is in hand from one look to the next, so handling pays nothing for it. A record that is in hand
    for longer than `limit` seconds is logged with the stack of its handler, once and again with growing pauses, and
    announced at every look, in place of the shard. What `status` returns is looked at on the watchdog's thread.

    A handler that lets no other thread run, such as a regular expression without end, holds up the watchdog too. Then
    the stacks of all threads go to stderr, and the registry notices that the shard is silent.
    """

    def __init__(
        self,
        owned: Mapping[int, Owned],
        *,
        limit: float,
        status: Callable[[], ShardStatus],
        announcer: Callable[[], Announcer],
    ) -> None:
        self._owned = owned
        self._limit = limit
        self._status = status
        self._open_announcer = announcer
        self._announcer: Announcer | None = None
        self._watched: dict[int, _Watched] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engram-watchdog", daemon=True)
        self._of = 0

    def start(self) -> None:
        self._of = threading.get_ident()
        self._thread.start()

    def close(self) -> None:
        """Ends, and waits for the end: its line to the registry must be closed before the shard's."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(_END_S)

    def _run(self) -> None:
        pause = min(_LOOK_S, self._limit / 4)
        while not self._ended.is_set():
            # Runs without Python's lock, should this thread not get it for so long.
            faulthandler.dump_traceback_later(self._limit + pause, file=2)
            if not self._ended.wait(pause):
                try:
                    self._look(time.monotonic())
                except Exception:
                    _logger.exception("watchdog_failed")  # it goes on: the next look may do better
        faulthandler.cancel_dump_traceback_later()
        if self._announcer is not None:
            self._announcer.close()

    def _look(self, now: float) -> None:
        stuck: dict[int, Stuck] = {}
        for partition, owned in list(self._owned.items()):
            record = owned.handling
            watched = self._watched.get(partition)
            if watched is not None and watched.record is not record:
                del self._watched[partition]
                if watched.reported is not None:
                    _tell_returned(watched.reported, now - watched.since)
            if record is not None:
                watched = self._watched.setdefault(partition, _Watched(record, now, self._limit))
                if now - watched.since >= self._limit and (found := self._found(watched, now)) is not None:
                    stuck[partition] = found
        if stuck:
            self._announce(stuck)

    def _found(self, watched: _Watched, now: float) -> Stuck | None:
        frame = sys._current_frames().get(self._of)  # noqa: SLF001 - Python's own way to another thread's stack
        running = None if frame is None else running_in(frame)
        if running is None:
            return None  # it has just returned
        record, seconds = watched.record, round(now - watched.since, 1)
        index = "" if running.index is None else f".{running.index}"
        stuck = Stuck(
            position=f"{record.partition}:{record.offset}{index}",
            command=running.command,
            key=running.key,
            seconds=seconds,
            stack=running.stack,
        )
        if now >= watched.report_at:
            watched.report_at = now + min(seconds, _LONGEST_PAUSE_S)
            watched.reported = stuck
            _logger.error("handler_stuck", **stuck.model_dump())
        return stuck

    def _announce(self, stuck: Mapping[int, Stuck]) -> None:
        if self._announcer is None:
            self._announcer = self._open_announcer()
        status = self._status()
        partitions = [_as_stuck(p, stuck.get(p.partition), status) for p in status.partitions]
        self._announcer.announce(status.model_copy(update={"partitions": partitions}))


def _as_stuck(partition: PartitionStatus, stuck: Stuck | None, status: ShardStatus) -> PartitionStatus:
    if stuck is None:
        return partition
    others = [str(p.partition) for p in status.partitions if p.partition != partition.partition]
    also = f"partition{'s' if len(others) > 1 else ''} {', '.join(others)}"
    behind = f" All of shard {status.shard} waits for it, {also} too." if others else ""
    what = f"{stuck.command} for {stuck.key!r} at {stuck.position}" if stuck.command else f"record {stuck.position}"
    problem = f"The handling of {what} has not ended for {stuck.seconds:.0f} s.{behind}"
    return partition.model_copy(update={"state": "stuck", "problem": problem, "stuck": stuck})


def _tell_returned(stuck: Stuck, seconds: float) -> None:
    _logger.warning(
        "handler_returned", position=stuck.position, command=stuck.command, key=stuck.key, seconds=round(seconds, 1)
    )
