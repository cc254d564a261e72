"""Making effects durable, while the shard goes on or before it does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import structlog

from engram.errors import EngramError, Fenced, Unavailable
from engram.log.base import Log
from engram.shard.outbox import Outbox, append_taken, take_all

# With so many effects that are not durable, no more commands are handled: the log does not keep up, or is away.
_FULL = 100_000
# A pause after a failure; after being fenced a longer one, in which a shard that was replaced finds that out.
_PAUSE_MS = 500
_FENCED_PAUSE_MS = 2000

_logger = structlog.get_logger()


class Flusher:
    """Appends what is in the outboxes, one append at a time, each with all that had come by then.

    With `background` that happens on a thread, and `wake` is called when it is done; otherwise in `turn` itself. What
    could not be appended is kept, and tried again.
    """

    def __init__(
        self, outboxes: Mapping[int, Outbox], log: Log, *, clock: Callable[[], int], wake: Callable[[], None] | None
    ) -> None:
        self._outboxes = dict(outboxes)
        self._log = log
        self._clock = clock
        self._wake = wake
        self._work = threading.Condition()
        self._busy = False  # an append is under way, or is to be
        self._started = 0
        self._done = 0
        self._marked = 0
        self._not_before = 0
        self._closed = False
        if wake is not None:
            threading.Thread(target=self._run, name="engram-effects", daemon=True).start()

    @property
    def full(self) -> bool:
        return sum(outbox.size for outbox in self._outboxes.values()) > _FULL

    def turn(self) -> None:
        """Starts the next append if there is something to append and none is under way."""
        if self._busy or self._clock() < self._not_before:
            return
        if not take_all(self._outboxes.values()):
            self._settle(self._marked)
            return
        if self._done == self._started:
            self._started += 1
        if self._wake is None:
            self._append()
        else:
            with self._work:
                self._busy = True
                self._work.notify_all()

    def finish(self) -> None:
        """Returns when all effects are durable. Raises `Unavailable` when they cannot be made so now."""
        while any(outbox.pending for outbox in self._outboxes.values()):
            self._not_before = 0
            before = self._done
            self.turn()
            with self._work:
                self._work.wait_for(lambda: not self._busy)
            if self._done == before:
                raise Unavailable("The effects of the last commands could not be appended to the log.")

    def drop(self, partition: int) -> None:
        """Forgets the effects of a partition that has another owner, or is stopped."""
        outbox = self._outboxes.pop(partition, None)
        if outbox is not None:
            outbox.drop()

    def mark(self) -> int:
        """The number of the append after which all effects so far are durable."""
        self._marked = self._started + any(outbox.untaken for outbox in self._outboxes.values())
        return self._marked

    def wait(self, mark: int) -> None:
        """Returns when that append is done; from any thread. Raises `Unavailable` when it will not be."""
        with self._work:
            self._work.wait_for(lambda: self._done >= mark or self._closed)
            if self._done < mark:
                raise Unavailable("The effects of the commands in it are not in the log.")

    def close(self) -> None:
        with self._work:
            self._closed = True
            self._work.notify_all()

    def _settle(self, number: int) -> None:
        """Nothing waits, so all appends up to this number are done: what they were to bring may have been dropped."""
        if self._done < number:
            with self._work:
                self._started = self._done = number
                self._work.notify_all()

    def _run(self) -> None:
        while True:
            with self._work:
                self._work.wait_for(lambda: self._busy or self._closed)
                if not self._busy:
                    return
            self._append()

    def _append(self) -> None:
        pause = 0
        done = False
        try:
            append_taken(list(self._outboxes.values()), self._log)
            done = True
        except Exception as problem:  # noqa: BLE001 - kept, and tried again; snapshots wait for it
            pause = _FENCED_PAUSE_MS if isinstance(problem, Fenced) else _PAUSE_MS
            _logger.warning("effects_wait", problem=str(problem) if isinstance(problem, EngramError) else repr(problem))
        finally:
            with self._work:
                self._busy = False
                self._done += done
                self._not_before = self._clock() + pause if self._wake is not None else 0
                self._work.notify_all()
        if done and self._wake is not None:
            self._wake()
