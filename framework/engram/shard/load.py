"""Recovery, first phase: an image from the newest whole snapshot. Next: `replay`."""

from __future__ import annotations

from engram.codec.codec import Codec
from engram.errors import Corrupt
from engram.image.image import Image
from engram.shard.owned import Owned
from engram.snapshots.base import SnapshotStore


def load(partition: int, codec: Codec, store: SnapshotStore) -> Owned:
    """The partition as of its newest whole snapshot; empty if there is none.

    A snapshot that this app cannot decode does not raise: it is the partition's problem, and the others go on.
    """
    owned = Owned(Image(partition, codec))
    try:
        loaded = store.newest(partition)
        if loaded is not None:
            owned.image.load(*loaded.contents)
            owned.snapshot = loaded.manifest.offset
    except Corrupt as problem:
        owned.stop(problem)
    return owned
