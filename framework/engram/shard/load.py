"""Recovery, first phase: an image from the newest whole snapshot. Next: `replay`."""

from __future__ import annotations

from collections.abc import Callable

from engram.codec.codec import Codec
from engram.errors import Corrupt
from engram.image.home import Cold, Handle
from engram.image.image import Image
from engram.shard.figures import snapshot_figures
from engram.shard.owned import Owned
from engram.shard.search import FtsIndex
from engram.snapshots.base import Loaded, SnapshotStore


def load(
    partition: int,
    codec: Codec,
    store: SnapshotStore,
    cold: Callable[[], Cold],
    *,
    partitions: int,
    around: Callable[[Handle], Handle] | None = None,
) -> Owned:
    """The partition, of so many, as of its newest whole snapshot; empty if there is none.

    A snapshot that this app cannot decode does not raise: it is the partition's problem, and the others go on.
    """

    def empty() -> Owned:
        return Owned(Image(partition, codec, around=around, cold=cold, new_text_index=FtsIndex), partitions)

    def of(loaded: Loaded) -> Owned:
        owned = empty()
        owned.image.load_encoded(loaded.columns, loaded.memory)
        owned.sent.begin(owned.image)
        owned.snapshot = loaded.manifest.offset
        owned.manifest = loaded.manifest
        owned.figures = snapshot_figures(loaded.manifest)
        return owned

    try:
        return store.restore(partition, of) or empty()
    except Corrupt as problem:
        owned = empty()
        owned.stop(problem)
        return owned
