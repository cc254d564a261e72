"""`engram replay`: a log from zero, in one process, without Spark."""

from __future__ import annotations

import sys
import time
from typing import Any

from engram.cli.output import say_json, show_table
from engram.codec.codec import Codec
from engram.image.image import Handled, Image
from engram.log.open import open_log
from engram.shard.reference import resolve_app
from engram.shard.replay import replay_until


def replay_log(reference: str, url: str, *, json: bool) -> None:
    app = resolve_app(reference)
    log = open_log(url, app.name)
    codec = Codec(app)
    started = time.monotonic()
    rows: list[dict[str, Any]] = []
    for partition in range(log.partitions):
        image = Image(partition, codec)
        end = log.end(partition)
        replay_until(image, log, end, effects=_dropped, progress=lambda i=image, e=end: _progress(i, e))  # type: ignore[misc]  # bound now
        rows.append(
            {
                "partition": partition,
                "records": end,
                "commands": image.handled,
                "entities": image.count(),
                "quarantined": image.quarantined,
                "digest": image.digest(),
            }
        )
    seconds = time.monotonic() - started
    log.close()
    if json:
        say_json({"app": app.name, "seconds": round(seconds, 3), "partitions": rows})
        return
    columns = ["partition", "records", "commands", "entities", "quarantined", "digest"]
    short = [[f"{r[c]:,}" if isinstance(r[c], int) else str(r[c])[:16] for c in columns] for r in rows]
    commands = sum(r["commands"] for r in rows)
    show_table(f"{app.name}: {commands:,} commands replayed in {seconds:.1f} s", columns, short)


def _dropped(_handled: Handled, _image: Image) -> None:
    """A replay to look at sends nothing: what it would send is in the log already."""


def _progress(image: Image, end: int) -> None:
    if sys.stderr.isatty():
        print(f"\rpartition {image.partition}: record {image.offset:,} of {end:,}   ", end="", file=sys.stderr)
