"""Writing snapshots in the background, so that commands go on meanwhile."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from engram.clock import Clock
from engram.errors import Unavailable
from engram.image.contents import EntityColumns
from engram.snapshots.base import Contents, SnapshotStore, release
from engram.snapshots.manifest import Manifest
from engram.worker import NewWorker, ThreadWorker, Worker


class Written(NamedTuple):
    """The end of one write: a manifest, or why there is none."""

    partition: int
    manifest: Manifest | None
    problem: Exception | None


class SnapshotWriter:
    """Writes what it is given, in order, on a worker of its own. Ends with `close`, which waits for what was given.

    `verify` raises for entities that could not be loaded again; then nothing is published. A store that hangs makes the
    others wait, and nobody else.
    """

    def __init__(
        self,
        store: SnapshotStore,
        clock: Clock,
        *,
        verify: Callable[[EntityColumns], None],
        new_worker: NewWorker = ThreadWorker,
    ) -> None:
        self._new_worker = new_worker
        self._store = store
        self._verify = verify
        self._clock = clock
        self._work: _Work | None = None

    def submit(
        self, partition: int, contents: Callable[[], Contents], *, after: Callable[[], None] = lambda: None
    ) -> None:
        """Queues a snapshot. `contents` is called on the writer's thread; `after` returns when it may be published, or
        raises because it may not."""
        if self._work is None:
            self._work = _Work(self._write, self._new_worker("engram-snapshots"))
        self._work.put(_Job(partition, contents, after))

    def written(self) -> list[Written]:
        """What has ended since the last call."""
        return [] if self._work is None else self._work.ended()

    def close(self, seconds: float | None = None) -> list[Written]:
        """Waits for everything submitted and returns what `written` has not yet told.

        After so many seconds it waits no longer: the rest is told as failed, and nothing of it is begun any more. What
        is being written then may still be published: it is whole, or it is not seen.
        """
        if self._work is None:
            return []
        work, self._work = self._work, None
        return work.close(seconds)

    def _write(self, job: _Job) -> Written:
        try:
            contents = job.contents()
            expected = contents.changed
            job.after()
            given = contents._replace(columns=self._verified(contents.columns), expected=expected)
            manifest = self._store.publish(job.partition, given, created=self._clock())
            return Written(job.partition, manifest, None)
        except Exception as problem:  # noqa: BLE001 - told to the shard, which goes on without this snapshot
            return Written(job.partition, None, problem)

    def _verified(self, columns: Iterable[EntityColumns]) -> Iterator[EntityColumns]:
        for some in columns:
            self._verify(some)
            yield some
            release(some)


class _Job(NamedTuple):
    partition: int
    contents: Callable[[], Contents]
    after: Callable[[], None]


class _Work:
    """A worker, what it has to do, and what has come of it."""

    def __init__(self, write: Callable[[_Job], Written], worker: Worker) -> None:
        self._write = write
        self._worker = worker
        self._waiting: list[int] = []  # the partitions of what has not ended, in order
        self._ended: queue.SimpleQueue[Written] = queue.SimpleQueue()

    def put(self, job: _Job) -> None:
        self._waiting.append(job.partition)
        self._worker.submit(lambda: self._ended.put(self._write(job)))

    def ended(self) -> list[Written]:
        found = []
        while not self._ended.empty():
            found.append(self._ended.get())
            self._waiting.remove(found[-1].partition)
        return found

    def close(self, seconds: float | None) -> list[Written]:
        self._worker.close(seconds)
        found = self.ended()
        late = Unavailable("The snapshot store has not taken it in time.")
        return [*found, *(Written(partition, None, late) for partition in self._waiting)]
