"""`engram replay --verify`: a log replayed, and compared with every snapshot on the way."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any, NamedTuple

from engram.cli.output import say_json, show_progress, show_table
from engram.cli.replay import replaying
from engram.cli.store import copy_folder, store_url
from engram.codec.codec import Codec
from engram.errors import Corrupt, Misuse
from engram.image.image import Image
from engram.log.base import Log
from engram.log.open import open_log
from engram.shard.past import dropped
from engram.shard.reference import resolve_app
from engram.shard.replay import check_version, replay_until
from engram.shard.versions import handled_after
from engram.snapshots.base import SnapshotStore
from engram.snapshots.manifest import Manifest
from engram.snapshots.open import open_store


class Difference(NamedTuple):
    """A snapshot that is not what a replay comes to. Up to record `equal` they were the same."""

    partition: int
    offset: int
    equal: int
    snapshot: str
    replayed: str

    def __str__(self) -> str:
        return (
            f"Partition {self.partition} differs at record {self.offset}: the snapshot's digest is "
            f"{self.snapshot[:16]}, the replay's {self.replayed[:16]}. Up to record {self.equal} they were the same: a "
            "command between these is handled otherwise now. Is a handler not deterministic (`engram run --guard`, "
            "engram.testing), or was one changed without a new version of the app?"
        )


class Verified(NamedTuple):
    """A partition: where the replay began, how many snapshots it was compared with, and the first that differs."""

    partition: int
    begun: int
    records: int
    compared: int
    digest: str
    differs: Difference | None


def verify_log(reference: str, url: str, snapshots: str | None, *, json: bool) -> None:
    """Raises `Corrupt` for the first snapshot that a replay does not come to, once all partitions were looked at."""
    app = resolve_app(reference)
    store = open_store(store_url(url, snapshots), app.name, copy=copy_folder(url), create=False)
    codec = Codec(app)
    with closing(open_log(url, app.name)) as log:
        partitions = [verify_partition(log, store, codec, partition) for partition in range(log.partitions)]
    show_progress("")
    rows = [{**found._asdict(), "differs": found.differs and found.differs._asdict()} for found in partitions]
    if json:
        say_json({"app": app.name, "partitions": rows})
    else:
        _show(app.name, partitions)
    for found in partitions:
        if found.differs is not None:
            raise Corrupt(str(found.differs))


def verify_partition(log: Log, store: SnapshotStore, codec: Codec, partition: int) -> Verified:
    """Replays a partition from zero, or from the first snapshot after which all was handled by this version of the
    app, and compares the image with every later snapshot: by the digest in its manifest, or what is read back of it."""
    manifests = sorted(store.manifests(partition), key=lambda manifest: manifest.offset)
    image = Image(partition, codec)
    begun = _begin(log, store, manifests, image)
    equal, compared = image.offset, 0
    differs: Difference | None = None
    for manifest in manifests:
        if manifest.offset < image.offset or manifest == begun or manifest.app_version != codec.app.version:
            continue
        _replay(image, log, manifest.offset)
        wanted, found = manifest.digest or _read_back(store, manifest, codec), image.digest()
        compared += 1
        if wanted != found:
            differs = Difference(partition, manifest.offset, equal, wanted, found)
            break
        equal = manifest.offset
    if differs is None:
        _replay(image, log, log.end(partition))
    first = 0 if begun is None else begun.offset
    return Verified(partition, first, image.offset - first, compared, image.digest(), differs)


def _begin(log: Log, store: SnapshotStore, manifests: Sequence[Manifest], image: Image) -> Manifest | None:
    """Brings the image to where its replay can begin; the snapshot that it is then of, None for zero."""
    older = [manifest for manifest in manifests if manifest.app_version <= image.app.version]
    for manifest in (None, *older):
        offset = 0 if manifest is None else manifest.offset
        there = log.read(image.partition, offset, limit=1)
        reached = not there or there[0].offset == offset
        if reached and not handled_after(log, image.partition, manifest).keys() - {image.app.version}:
            if manifest is not None:
                loaded = store.read(manifest)
                image.load_encoded(loaded.columns, loaded.memory)
            return manifest
    raise Misuse(
        f"Partition {image.partition} cannot be verified by version {image.app.version} of {image.app.name}: records "
        "after its last snapshot were handled by another version. Verify with the code of that version."
    )


def _replay(image: Image, log: Log, end: int) -> None:
    replay_until(image, log, end, effects=dropped, progress=replaying(image, end), check=check_version)


def _read_back(store: SnapshotStore, manifest: Manifest, codec: Codec) -> str:
    """The digest of a snapshot that has none in its manifest."""
    loaded = store.read(manifest)
    image = Image(manifest.partition, codec)
    image.load_encoded(loaded.columns, loaded.memory)
    return image.digest()


def _show(app: str, partitions: Sequence[Verified]) -> None:
    columns = ["partition", "from record", "records", "snapshots compared", "digest", "first difference"]
    rows: list[list[Any]] = [
        [
            found.partition,
            f"{found.begun:,}",
            f"{found.records:,}",
            found.compared,
            found.digest[:16],
            "" if found.differs is None else f"at record {found.differs.offset:,}",
        ]
        for found in partitions
    ]
    compared = sum(found.compared for found in partitions)
    show_table(f"{app}: replayed, and compared with {compared:,} snapshots", columns, rows)
