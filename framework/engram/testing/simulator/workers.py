"""What production does beside its loops, as steps of the simulation's schedule."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from engram.worker import Job


class Blocked(BaseException):
    """A job waits for something that others must do first. It is begun anew later; no code of ours catches this."""


class SimulatedWorker:
    """See `engram.worker.Worker`. A job is done when the schedule says `work`, or when somebody waits for it."""

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()
        self._closed = False

    @property
    def busy(self) -> bool:
        return bool(self._jobs)

    def work(self) -> bool:
        """Does the next job, if there is one and it can be done."""
        if not self._jobs:
            return False
        try:
            self._jobs[0]()
        except Blocked:
            return False
        if self._jobs:  # a job may have closed this worker
            self._jobs.popleft()
        return True

    def submit(self, job: Job) -> None:
        if not self._closed:
            self._jobs.append(job)

    def wait(self, until: Callable[[], bool]) -> None:
        while not until():
            if not self.work():
                raise Blocked

    def notify(self) -> None:
        """Nobody waits beside us."""

    def close(self, seconds: float | None = None) -> None:
        while seconds != 0 and self.work():
            pass
        self._closed = True
        self._jobs.clear()
