"""`engram snapshot`: what snapshots there are, and whether they can be used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from engram.cli.output import say, say_json, show_progress, show_table
from engram.clock import system_clock
from engram.codec.codec import Codec
from engram.errors import Corrupt, Misuse
from engram.image.contents import digest_with
from engram.log.open import folder_beside
from engram.log.stream import time_text
from engram.model.version import Version
from engram.shard.reference import resolve_app
from engram.snapshots.base import SnapshotStore
from engram.snapshots.hashes import Hashes
from engram.snapshots.manifest import Manifest
from engram.snapshots.open import open_store
from engram.snapshots.parted import PartedSnapshots

_COSTS = ("pause_ms", "background_ms")


def list_snapshots(reference: str, log: str | None, snapshots: str | None, *, json: bool) -> None:
    """Prints all snapshots, partition by partition, newest first."""
    store = _store(resolve_app(reference).name, log, snapshots)
    manifests = [manifest for partition in store.partitions() for manifest in store.manifests(partition)]
    found = [_described(manifest) for manifest in manifests]
    if json:
        say_json(found)
    elif not found:
        say(f"There are no snapshots in {store.place}.")
    else:
        columns = ["partition", "offset", "time", "entities", "changed", "bytes", "parts", *_COSTS, "app_version"]
        now = system_clock()
        rows = [
            [_age(now - manifest.created), *(row[column] for column in (*columns, "savepoint"))]
            for manifest, row in zip(manifests, found, strict=True)
        ]
        show_table(f"Snapshots in {store.place}", ["age", *columns, "savepoint"], rows)


def show_snapshot(reference: str, which: str, log: str | None, snapshots: str | None, *, json: bool) -> None:
    """Prints all that is known of a snapshot: its parts, its entities by type and version, and the rest of the image.

    `which` is the name of a savepoint, or a partition and an offset, such as 3:1042. Raises `Misuse` if there is none.
    """
    store = _store(resolve_app(reference).name, log, snapshots)
    every = [manifest for partition in store.partitions() for manifest in store.manifests(partition)]
    found = [m for m in every if which in (m.savepoint, f"{m.partition}:{m.offset}")]
    if not found:
        names = sorted({m.savepoint for m in every if m.savepoint})
        raise Misuse(
            f"There is no snapshot {which} in {store.place}: write the name of a savepoint "
            f"({', '.join(names) or 'there is none'}), or PARTITION:OFFSET as `engram snapshot list` has them."
        )
    for manifest in found:
        detail = _detail(store, manifest)
        if json:
            say_json(detail)
        else:
            say("\n".join(_told(detail)))


def _detail(store: SnapshotStore, manifest: Manifest) -> dict[str, Any]:
    about = {**_described(manifest), "digest": manifest.digest, "epoch": manifest.epoch}
    about["files"] = [part.model_dump() for part in manifest.parts]
    types: Counter[tuple[str, Version]] = Counter()
    try:
        loaded = store.read(manifest)
        for name, version, keys, _, _ in loaded.columns:
            types[name, version] += len(keys)
    except Corrupt as problem:
        return {**about, "problem": str(problem)}
    memory = loaded.memory
    return {
        **about,
        "types": [{"entity": name, "version": version, "count": count} for (name, version), count in types.items()],
        "image_time": time_text(memory.time),
        "sessions": len(memory.sessions),
        "idempotency_keys": len(memory.keys),
        "timers": len(memory.timers),
        "quarantine": len(memory.quarantine),
    }


def _told(detail: dict[str, Any]) -> Iterator[str]:
    savepoint = f", savepoint {detail['savepoint']}" if detail["savepoint"] else ""
    yield f"Partition {detail['partition']}, up to record {detail['offset']}{savepoint}"
    yield f"  taken          {detail['time']} by version {detail['app_version']} of the app, epoch {detail['epoch']}"
    yield f"  written        {detail['changed']:,} of {detail['entities']:,} entities, {detail['bytes']:,} bytes"
    yield f"  digest         {detail['digest'] or 'none: it was written by an older Engram'}"
    for part in detail["files"]:
        yield f"  part           {part['name']}  {part['size']:,} bytes"
    if "problem" in detail:
        yield f"  CANNOT BE USED {detail['problem']}"
        return
    for of in detail["types"]:
        yield f"  entities       {of['count']:,} {of['entity']}, version {of['version']}"
    keys, waiting = detail["idempotency_keys"], detail["timers"]
    yield f"  and            {detail['sessions']:,} sessions, {keys:,} idempotency keys, {waiting:,} timers"
    yield f"  in quarantine  {detail['quarantine']:,}"
    yield f"  its time       {detail['image_time']}"


def remove_savepoint(reference: str, name: str, log: str | None, snapshots: str | None, *, json: bool) -> None:
    """Removes a savepoint of all partitions. Raises `Misuse` where it is the newest snapshot: a start needs that."""
    store = _store(resolve_app(reference).name, log, snapshots)
    every = [store.manifests(partition) for partition in store.partitions()]
    found = [manifest for manifests in every for manifest in manifests if manifest.savepoint == name]
    if not found:
        raise Misuse(f"There is no savepoint {name} in {store.place}.")
    for manifest in found:
        newer = [m for m in store.manifests(manifest.partition) if m.offset > manifest.offset]
        if not newer:
            raise Misuse(
                f"Savepoint {name} is the newest snapshot of partition {manifest.partition}, and a start begins with "
                "it: it can go when there is a newer one. Nothing was removed."
            )
    for manifest in found:
        store.remove(manifest)
    if json:
        say_json({"savepoint": name, "removed": [_described(manifest) for manifest in found]})
    else:
        say(f"Savepoint {name} of {len(found)} partitions is removed.")


def verify_snapshots(reference: str, log: str | None, snapshots: str | None, *, json: bool) -> None:
    """Reads every snapshot back, checks its parts, decodes every entity, and takes the digest. Nothing is changed.

    Raises `Corrupt` at the end when any of them cannot be used.
    """
    app = resolve_app(reference)
    store, codec = _store(app.name, log, snapshots), Codec(app)
    rows = []
    for partition in store.partitions():
        for manifest in store.manifests(partition):
            show_progress(f"partition {partition}, record {manifest.offset} ...")
            rows.append({**_described(manifest), **_verified(store, codec, manifest)})
    show_progress("")
    if json:
        say_json(rows)
    else:
        columns = ["partition", "offset", "entities", "digest", "problem"]
        show_table("Snapshots, read back", columns, [[row[column] for column in columns] for row in rows])
    damaged = [row for row in rows if row["problem"]]
    if damaged:
        raise Corrupt(
            f"{len(damaged)} of {len(rows)} snapshots cannot be used. A start sets them aside and takes the one "
            "before, with a longer replay."
        )


def _verified(store: SnapshotStore, codec: Codec, manifest: Manifest) -> dict[str, str]:
    """One entity after the other is decoded, and let go of: a snapshot may be larger than memory."""
    hashes = Hashes(kept=False)
    try:
        loaded = store.read(manifest)
        for columns in loaded.columns:
            hashes.add(columns)
            for state in columns.states:
                codec.decode_entity(columns.entity, columns.version, state)
        return {"digest": digest_with(hashes.total, loaded.memory), "problem": ""}
    except Corrupt as problem:
        return {"digest": "", "problem": str(problem)}


def _described(manifest: Manifest) -> dict[str, Any]:
    return {
        "partition": manifest.partition,
        "offset": manifest.offset,
        "time": time_text(manifest.created),
        "entities": manifest.entities,
        "changed": manifest.changed,
        "bytes": manifest.written_bytes,
        "parts": len(manifest.entity_parts),
        "pause_ms": manifest.pause_ms,
        "background_ms": manifest.background_ms,
        "app_version": manifest.app_version,
        "savepoint": manifest.savepoint,
    }


def _age(milliseconds: int) -> str:
    """In whole units, the two greatest: `3 d 4 h`."""
    seconds = max(milliseconds, 0) // 1000
    units = [("d", seconds // 86_400), ("h", seconds // 3600 % 24), ("min", seconds // 60 % 60), ("s", seconds % 60)]
    first = next((number for number, (_, amount) in enumerate(units) if amount), len(units) - 1)
    return " ".join(f"{amount} {unit}" for unit, amount in units[first : first + 2])


def _store(app: str, log: str | None, snapshots: str | None) -> PartedSnapshots:
    if (log is None) == (snapshots is None):
        raise Misuse("Say where the snapshots are: --log URL for those beside a log, or --snapshots URL.")
    return open_store(snapshots or f"{folder_beside(str(log))}-snapshots", app, create=False)
