"""Writing snapshots in the background, so that commands go on meanwhile."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import NamedTuple

from engram.clock import Clock
from engram.snapshots.base import Contents, SnapshotStore
from engram.snapshots.manifest import Manifest


class Written(NamedTuple):
    """The end of one write: a manifest, or why there is none."""

    partition: int
    manifest: Manifest | None
    problem: Exception | None


class SnapshotWriter:
    """One thread that writes what it is given, in order. Ends with `close`, which waits for what was given.

    `verify` raises for contents that could not be loaded again; they are not published.
    """

    def __init__(self, store: SnapshotStore, clock: Clock, *, verify: Callable[[Contents], None]) -> None:
        self._store = store
        self._verify = verify
        self._clock = clock
        self._jobs: queue.SimpleQueue[tuple[int, Contents, Callable[[], None]] | None] = queue.SimpleQueue()
        self._written: queue.SimpleQueue[Written] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, partition: int, contents: Contents, *, after: Callable[[], None] = lambda: None) -> None:
        """Queues a snapshot. `after` returns when it may be published, or raises because it may not."""
        # Started at the first snapshot: a Spark worker that is about to fork must have no threads.
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="engram-snapshots", daemon=True)
            self._thread.start()
        self._jobs.put((partition, contents, after))

    def written(self) -> list[Written]:
        """What has ended since the last call."""
        ended = []
        while not self._written.empty():
            ended.append(self._written.get())
        return ended

    def close(self) -> list[Written]:
        """Waits for everything submitted and returns what `written` has not yet told."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None
        return self.written()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            partition, contents, after = job
            try:
                self._verify(contents)
                after()
                manifest = self._store.publish(partition, contents, created=self._clock())
                self._written.put(Written(partition, manifest, None))
            except Exception as problem:  # noqa: BLE001 - told to the shard, which goes on without this snapshot
                self._written.put(Written(partition, None, problem))
