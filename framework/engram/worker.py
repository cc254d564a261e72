"""Work beside the one who gives it: on a thread, or wherever whoever passes a worker in has it done."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Protocol

# For how long a thread keeps Python's lock when another wants it. The default is 5 ms: a snapshot's writer, which needs
# the lock often and briefly, then takes half as long again beside a busy shard, and slows it for that long.
_TURN_S = 0.001

# The kernel makes about 0.16 ms of it, in which a thread that was woken takes the lock and handles a command. To let
# the lock go for a moment is too short: this thread has it again before the other one is awake.
_GIVEN_WAY_S = 1e-4

Job = Callable[[], None]


def take_short_turns() -> None:
    """For a process whose main thread is always busy, and has others beside it."""
    sys.setswitchinterval(_TURN_S)


def give_way() -> None:
    """For who has woken another thread and goes on: that one would wait for Python's lock until this one blocks, or its
    turn ends."""
    time.sleep(_GIVEN_WAY_S)


class Worker(Protocol):
    """Does jobs one after the other, in the order in which they were given. A job must not raise.

    What shards and gateways do beside their loops goes through workers that are passed in, so that a simulation has
    it done as steps of its own schedule, and everything is a function of its seed.
    """

    def submit(self, job: Job) -> None:
        """Returns at once, as a rule. After `close` nothing is begun any more."""

    def wait(self, until: Callable[[], bool]) -> None:
        """Returns when `until` is so; from any thread. It is looked at after each job, and when `notify` was called."""

    def notify(self) -> None:
        """Those who wait look again."""

    def close(self, seconds: float | None = None) -> None:
        """Waits until all that was given is done, but no longer than so many seconds: what was not begun by then is
        not done at all."""


NewWorker = Callable[[str], Worker]
"""Makes a worker of a name, which is for people."""


class ThreadWorker:
    """See `Worker`. The thread starts with the first job: a process that is about to fork must have none."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._given_up = False
        self._thread: threading.Thread | None = None

    def submit(self, job: Job) -> None:
        self._jobs.put(job)
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def wait(self, until: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(until)

    def notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def close(self, seconds: float | None = None) -> None:
        self._jobs.put(None)
        if self._thread is not None:
            self._thread.join(None if seconds is None else max(0.0, seconds))
        self._given_up = True

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None and not self._given_up:
            job()
            self.notify()


class InlineWorker(ThreadWorker):
    """See `Worker`. A job is done before `submit` returns; others may wait for it on threads of their own."""

    def __init__(self) -> None:
        super().__init__("")

    def submit(self, job: Job) -> None:
        job()
        self.notify()
