"""`engram replay`: a log from zero, in one process, without Spark."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from engram.cli.output import say_json, show_progress, show_table
from engram.cli.restore import savepoint_of_all
from engram.cli.store import store_url
from engram.codec.codec import Codec
from engram.codec.record import Record
from engram.image.image import Image
from engram.log.base import Log
from engram.log.open import open_log
from engram.shard.past import dropped
from engram.shard.reference import resolve_app
from engram.shard.replay import Check, Progress, replay_until
from engram.snapshots.base import Loaded
from engram.snapshots.open import open_store


def replay_log(reference: str, url: str, *, savepoint: str, snapshots: str | None, json: bool) -> None:
    """From zero, or from a savepoint: of what was before it, a log that was made from another has nothing."""
    app = resolve_app(reference)
    log = open_log(url, app.name)
    codec = Codec(app)
    started = time.monotonic()
    rows: list[dict[str, Any]] = []
    begins: Sequence[Loaded | None] = [None] * log.partitions
    if savepoint:
        store = open_store(store_url(url, snapshots), app.name, create=False)
        begins = [store.read(manifest) for manifest in savepoint_of_all(savepoint, log.partitions, store)]
    for partition in range(log.partitions):
        end = log.end(partition)
        image = replayed(log, codec, partition, end, begin=begins[partition])
        rows.append(
            {
                "partition": partition,
                "records": end,
                "commands": image.handled,
                "entities": image.count(),
                "quarantined": image.quarantine.count,
                "digest": image.digest(),
            }
        )
    seconds = time.monotonic() - started
    log.close()
    show_progress("")
    if json:
        say_json({"app": app.name, "seconds": round(seconds, 3), "partitions": rows})
        return
    columns = ["partition", "records", "commands", "entities", "quarantined", "digest"]
    short = [[f"{r[c]:,}" if isinstance(r[c], int) else str(r[c])[:16] for c in columns] for r in rows]
    commands = sum(r["commands"] for r in rows)
    show_table(f"{app.name}: {commands:,} commands replayed in {seconds:.1f} s", columns, short)


def _unchecked(_image: Image, _record: Record) -> None: ...


def replayed(
    log: Log, codec: Codec, partition: int, end: int, *, check: Check = _unchecked, begin: Loaded | None = None
) -> Image:
    """The image of a partition's records up to `end`, from zero or from a snapshot, with progress on a terminal.

    `check` sees each record first. Raises `Corrupt` when one cannot be decoded or is not there.
    """
    image = Image(partition, codec)
    if begin is not None:
        image.load_encoded(begin.columns, begin.memory)
    replay_until(image, log, end, effects=dropped, progress=replaying(image, end), check=check)
    return image


def replaying(image: Image, end: int) -> Progress:
    """Says on a terminal how far an image is."""
    return lambda: show_progress(f"replaying: partition {image.partition}, record {image.offset:,} of {end:,}")
