"""The state of a partition at a moment of its past: the newest snapshot before it, and the records from there on."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from engram.codec.codec import Codec
from engram.codec.record import Record
from engram.errors import Corrupt, Misuse
from engram.image.image import Handled, Image
from engram.log.base import Log
from engram.shard.replay import Progress, replay_until
from engram.snapshots.base import Loaded, SnapshotStore


@dataclass(frozen=True, slots=True)
class Moment:
    """Before record `offset`, and before the first record whose time is after `time`, in milliseconds."""

    offset: int
    time: int | None = None


def image_at(
    moment: Moment,
    partition: int,
    codec: Codec,
    log: Log,
    store: SnapshotStore | None,
    *,
    progress: Progress = lambda: None,
    any_version: bool = False,
) -> Image:
    """The image of a partition at a moment. Nothing is changed, sent or set aside.

    Raises `Misuse` for records that another version of the app has handled, unless `any_version`; `Corrupt` when the
    log does not reach from the snapshot to the moment, or has what the app cannot decode.
    """
    image = Image(partition, codec)
    loaded = None if store is None else snapshot_before(moment, partition, store)
    if loaded is not None:
        image.load_encoded(loaded.columns, loaded.memory)

    def check(image: Image, record: Record) -> None:
        if moment.time is not None and record.time > moment.time:
            raise _Reached
        if not any_version:
            check_own(image, record)

    with suppress(_Reached):
        replay_until(image, log, moment.offset, effects=dropped, progress=progress, check=check)
    return image


def snapshot_before(moment: Moment, partition: int, store: SnapshotStore) -> Loaded | None:
    """The newest snapshot that has nothing of what comes after the moment; one that is damaged is passed over."""
    for manifest in store.manifests(partition):
        if manifest.offset <= moment.offset:
            try:
                loaded = store.read(manifest)
            except Corrupt:
                continue
            if moment.time is None or loaded.memory.time <= moment.time:
                return loaded
    return None


def check_own(image: Image, record: Record) -> None:
    """Raises `Misuse` for a record that another version of the app has handled."""
    if image.app_version not in (0, image.app.version) and record.kind.is_work:
        raise Misuse(
            f"Record {record.offset} of partition {record.partition} was handled by version {image.app_version} of "
            f"{image.app.name}, and this is version {image.app.version}, with which it may mean something else: use "
            f"the code of version {image.app_version}, or read the state of a snapshot."
        )


class _Reached(Exception):
    """The moment is there."""


def dropped(_handled: Handled) -> None:
    """What is looked at sends nothing: what it would send is in the log already, or its owner's to send."""
