"""Making effects durable, while the shard goes on or before it does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import structlog

from engram.errors import EngramError, Fenced, Unavailable
from engram.log.base import Log
from engram.shard.outbox import Outbox, append_taken, take_all
from engram.worker import InlineWorker, Worker

# With so many effects that are not durable, no more commands are handled: the log does not keep up, or is away.
_FULL = 100_000
# A pause after a failure; after being fenced a longer one, in which a shard that was replaced finds that out.
_PAUSE_MS = 500
_FENCED_PAUSE_MS = 2000

_logger = structlog.get_logger()


class Flusher:
    """Appends what is in the outboxes, one append at a time, each with all that had come by then.

    With a `worker` that happens beside the shard, and `wake` is called when it is done; otherwise in `turn` itself.
    What could not be appended is kept, and tried again.
    """

    def __init__(
        self,
        outboxes: Mapping[int, Outbox],
        log: Log,
        *,
        clock: Callable[[], int],
        worker: Worker | None = None,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._outboxes = dict(outboxes)
        self._lost: set[int] = set()  # partitions of which something was dropped that is not durable
        self._log = log
        self._clock = clock
        self._beside = worker is not None
        self._worker = worker or InlineWorker()
        self._wake = wake
        self._busy = False  # an append is under way, or is to be
        self._started = 0
        self._done = 0
        self._marked = 0
        self._not_before = 0
        self._closed = False
        self._closing = threading.Lock()

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
        self._busy = True
        self._worker.submit(self._append)

    def finish(self) -> None:
        """Returns when all effects are durable. Raises `Unavailable` when they cannot be made so now."""
        while any(outbox.pending for outbox in self._outboxes.values()):
            self._not_before = 0
            before = self._done
            if not self._closed:
                self.turn()
                self._worker.wait(lambda: not self._busy)
            if self._done == before:
                raise Unavailable("The effects of the last commands could not be appended to the log.")

    def drop(self, partition: int) -> None:
        """Forgets the effects of a partition that has another owner, or is stopped. A snapshot that waits for them must
        never be published: whoever starts from it would not send them again."""
        outbox = self._outboxes.pop(partition, None)
        if outbox is not None:
            if outbox.pending:
                self._lost.add(partition)
            outbox.drop()
            self._worker.notify()

    def mark(self) -> int:
        """The number of the append after which all effects so far are durable."""
        mark = self._started + any(outbox.untaken for outbox in self._outboxes.values())
        # An append that is tried again takes along what has come meanwhile: then a later mark can be lower.
        self._marked = max(self._marked, mark)
        return mark

    def wait(self, mark: int, partition: int) -> None:
        """Returns when that append is done; from any thread. Raises `Unavailable` when it will not be, or when effects
        of the partition were dropped meanwhile."""
        self._worker.wait(lambda: self._done >= mark or self._closed or partition in self._lost)
        if self._done < mark or partition in self._lost:
            raise Unavailable("The effects of the commands in it are not in the log.")

    def close(self) -> None:
        """Begins nothing any more, does not wait for what is under way, and wakes nobody from here on: who would be
        woken may be closed next, and its descriptor be somebody else's."""
        with self._closing:
            self._closed = True
        self._worker.notify()
        self._worker.close(0)

    def _settle(self, number: int) -> None:
        """Nothing waits, so all appends up to this number are done: what they were to bring may have been dropped."""
        if self._done < number:
            self._started = self._done = number
            self._worker.notify()

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
            self._not_before = self._clock() + pause if self._beside else 0
            self._done += done
            self._busy = False  # last: from here on the shard may begin the next one
        if done and self._beside:
            with self._closing:
                if not self._closed:
                    self._wake()
