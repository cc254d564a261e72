"""Snapshots are written in the background, one after the other, and a failure is told."""

from __future__ import annotations

import threading
from functools import partial

from engram.errors import Corrupt, Unavailable
from engram.snapshots.memory import MemorySnapshots
from engram.snapshots.writer import SnapshotWriter

from tests.snapshots.contents import social_contents

DEADLINE_S = 10


class GatedSnapshots(MemorySnapshots):
    """Snapshots in memory that wait for a gate, as a disk would make them, and fail when told to."""

    def __init__(self) -> None:
        super().__init__("social")
        self.gate = threading.Semaphore(0)
        self.problem: Exception | None = None
        self.threads: set[str] = set()

    def publish(self, partition, contents, *, created):
        self.threads.add(threading.current_thread().name)
        assert self.gate.acquire(timeout=DEADLINE_S)
        if self.problem is not None:
            raise self.problem
        return super().publish(partition, contents, created=created)


def written(writer: SnapshotWriter):
    """The next one that has ended."""
    waiter = threading.Event()
    for _ in range(DEADLINE_S * 1000):
        if ended := writer.written():
            assert len(ended) == 1
            return ended[0]
        waiter.wait(0.001)
    raise AssertionError("nothing was written in time")


def anything(_contents):
    """All contents are good."""


def test_a_snapshot_is_written_beside_its_owner():
    """`submit` returns at once; the snapshot is published on another thread, and then told with its manifest."""
    store = GatedSnapshots()
    writer = SnapshotWriter(store, lambda: 1234, verify=anything)
    writer.submit(0, partial(social_contents, 2))
    assert writer.written() == []
    assert store.newest(0) is None
    store.gate.release()
    ended = written(writer)
    writer.close()
    assert (ended.partition, ended.problem) == (0, None)
    assert ended.manifest == store.manifests(0)[0]
    assert ended.manifest.created == 1234
    assert store.threads == {"engram-snapshots"}


def test_a_failure_is_told_and_the_next_one_is_written():
    """A write that fails is told with its reason, and does not end the writer."""
    store = GatedSnapshots()
    writer = SnapshotWriter(store, lambda: 0, verify=anything)
    store.problem = Unavailable("the disk is full")
    writer.submit(3, partial(social_contents, 1))
    store.gate.release()
    failed = written(writer)
    store.problem = None
    writer.submit(3, partial(social_contents, 2))
    store.gate.release()
    succeeded = written(writer)
    writer.close()
    assert (failed.partition, failed.manifest, str(failed.problem)) == (3, None, "the disk is full")
    assert (succeeded.manifest.offset, succeeded.problem) == (2, None)


def test_closing_waits_for_what_was_given():
    """When `close` returns, everything that was submitted is written and told, in the order it was given."""
    store = GatedSnapshots()
    writer = SnapshotWriter(store, lambda: 0, verify=anything)
    for offset in (1, 2, 3):
        writer.submit(offset, partial(social_contents, offset))
    store.gate.release(3)
    ended = writer.close()
    assert [(one.partition, one.manifest.offset) for one in ended] == [(1, 1), (2, 2), (3, 3)]
    assert writer.close() == []


def test_closing_waits_only_as_long_as_it_is_told_to():
    """What a store that hangs has not taken by then is told as failed, what waited behind it is not begun, and the
    writer can be used again."""
    store = GatedSnapshots()
    writer = SnapshotWriter(store, lambda: 0, verify=anything)
    for partition in (1, 2):
        writer.submit(partition, partial(social_contents, partition))
    ended = writer.close(0.05)
    store.gate.release(3)
    writer.submit(3, partial(social_contents, 3))
    again = writer.close()
    assert [(one.partition, one.manifest, str(one.problem)) for one in ended] == [
        (partition, None, "The snapshot store has not taken it in time.") for partition in (1, 2)
    ]
    assert [one.partition for one in again] == [3]
    assert store.manifests(2) == []


def test_there_is_no_thread_before_the_first_snapshot():
    """Spark forks its workers, and a thread would not survive it: none is started before it is needed."""
    before = threading.active_count()
    writer = SnapshotWriter(GatedSnapshots(), lambda: 0, verify=anything)
    assert threading.active_count() == before
    assert writer.close() == []


def test_contents_that_could_not_be_loaded_again_are_not_published():
    """What `verify` refuses is told with its reason, and the store has nothing of it."""
    store = MemorySnapshots("social")

    def refuse(_contents):
        raise Corrupt("no way back")

    writer = SnapshotWriter(store, lambda: 0, verify=refuse)
    writer.submit(0, partial(social_contents, 1))
    (ended,) = writer.close()
    assert (ended.manifest, str(ended.problem)) == (None, "no way back")
    assert store.newest(0) is None
