"""`engram snapshot restore-from`: the next start begins at a savepoint."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from typing import NamedTuple

from engram.cli.output import say, say_json, show_progress
from engram.cli.store import copy_folder, store_url
from engram.codec.codec import Codec
from engram.codec.record import Epoch
from engram.errors import Misuse
from engram.image.image import Image
from engram.log.base import Log
from engram.log.open import open_log
from engram.model.app import App
from engram.serving.line import status_at
from engram.shard.reference import resolve_app
from engram.shard.versions import handled_after
from engram.snapshots.base import SnapshotStore
from engram.snapshots.manifest import Manifest
from engram.snapshots.open import open_store

# A shard that is there answers at once, unless a handler holds it up.
_ANSWER_S = 2.0


class Restored(NamedTuple):
    """What the next start begins with."""

    savepoint: str
    records: int  # to be replayed, of all partitions
    aside: list[Manifest]


def restore_from(reference: str, log: str, snapshots: str | None, name: str, *, json: bool) -> None:
    app = resolve_app(reference)
    store = open_store(store_url(log, snapshots), app.name, copy=copy_folder(log), create=False)
    with closing(open_log(log, app.name)) as opened:
        restored = begin_from(name, app, opened, store)
    if json:
        aside = [{"partition": m.partition, "offset": m.offset, "savepoint": m.savepoint} for m in restored.aside]
        say_json({"savepoint": name, "records": restored.records, "aside": aside})
    else:
        say(told(restored))


def told(restored: Restored) -> str:
    snapshots = "1 newer snapshot was" if len(restored.aside) == 1 else f"{len(restored.aside):,} newer snapshots were"
    records = "1 record" if restored.records == 1 else f"{restored.records:,} records"
    return (
        f"The next start begins from savepoint {restored.savepoint} and replays {records}. {snapshots} set aside: "
        "manifests that end in .aside, with their parts; nothing was deleted."
    )


def begin_from(name: str, app: App, log: Log, store: SnapshotStore) -> Restored:
    """Sets all snapshots aside that are newer than the savepoint: it is the newest then, and a start takes the newest.

    Everything is checked first, and nothing is touched if anything is not right. Raises `Misuse` when the app is
    running, a partition has no such savepoint, the log does not reach from there, or records after it were handled by
    another version of the app; and `Corrupt` when it cannot be read, or has what this app does not know.
    """
    chosen = savepoint_of_all(name, log.partitions, store)
    for manifest in chosen:
        show_progress(f"checking: partition {manifest.partition}, record {manifest.offset:,}")
        _check_reach(manifest, log)
        _check_records(manifest, app, log)
        loaded = store.read(manifest)
        Image(manifest.partition, Codec(app)).load_encoded(loaded.columns, loaded.memory)
    show_progress("")
    newer = [m for of in chosen for m in store.manifests(of.partition) if m.offset > of.offset]
    for manifest in newer:
        store.set_aside(manifest)
    return Restored(name, sum(log.end(manifest.partition) - manifest.offset for manifest in chosen), newer)


def savepoint_of_all(name: str, count: int, store: SnapshotStore) -> list[Manifest]:
    """The savepoint of every partition of a log that has `count`. Raises `Misuse` when one has none."""
    partitions = range(count)
    found = {p: manifest for p in partitions if (manifest := store.savepoint(p, name)) is not None}
    if not found:
        every = {m.savepoint for p in store.partitions() for m in store.manifests(p) if m.savepoint}
        there = f"There are: {', '.join(sorted(every))}." if every else "There is none at all."
        raise Misuse(f"There is no savepoint {name}. {there}")
    missing = [str(p) for p in partitions if p not in found]
    if missing:
        raise Misuse(
            f"Savepoint {name} is of {len(found)} of {count} partitions: {', '.join(missing)} have none. It "
            "was not finished, or somebody removed it there. Choose another."
        )
    return list(found.values())


def _check_reach(manifest: Manifest, log: Log) -> None:
    partition, offset, end = manifest.partition, manifest.offset, log.end(manifest.partition)
    if end < offset:
        raise Misuse(
            f"Partition {partition} of the log ends at record {end}, but the savepoint is of record {offset}: the log "
            "was cut, or is an older copy."
        )
    begins = log.start(partition)
    if begins > offset:
        raise Misuse(
            f"Partition {partition} of the log begins at record {begins}, but the savepoint is of record {offset}: "
            "what is between is gone. Choose a newer one."
        )


def handled_at_rest(log: Log, partition: int, manifest: Manifest | None) -> Counter[int]:
    """How many records after a snapshot were handled by each version. Raises `Misuse` when somebody is at work."""
    owners: list[Epoch] = []
    if manifest is not None and manifest.epoch >= log.start(partition):
        owners += [Epoch.model_validate_json(r.payload) for r in log.read(partition, manifest.epoch, limit=1)]
    handled = handled_after(log, partition, manifest, see_epoch=owners.append)
    if manifest is not None and not owners:
        raise Misuse(
            f"Whether {log.app} is running cannot be told: record {manifest.epoch} of partition {partition}, which "
            "says who has it, was trimmed. End the app with `engram savepoint`, or name the archive in the log's URL."
        )
    if owners:
        check_stopped(log.app, partition, owners[-1])
    return handled


def _check_records(manifest: Manifest, app: App, log: Log) -> None:
    """That nobody is at work on the partition, and that all records after the savepoint are this version's."""
    handled = handled_at_rest(log, manifest.partition, manifest)
    handled.pop(app.version, None)
    for version, count in handled.items():
        raise Misuse(
            f"This is version {app.version} of {app.name}, but {count:,} records of partition {manifest.partition} "
            f"after savepoint {manifest.savepoint} were handled by version {version}: they would mean something else "
            f"now. Use the code of version {version}, or choose a savepoint that version {version} has ended with."
        )


def check_stopped(app: str, partition: int, owner: Epoch) -> None:
    """Raises `Misuse` when the owner of a partition, as its log has it, is at work."""
    status = status_at(owner.address, seconds=_ANSWER_S) if owner.ends is None else None
    if status is not None and status.owner == owner.owner:
        raise Misuse(
            f"{app} is running: shard {status.shard} (process {status.pid}) has partition {partition}. Stop it first."
        )
