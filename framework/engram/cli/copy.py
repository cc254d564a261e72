"""`engram log copy`: a whole log to another place, and the proof that the copy is the same."""

from __future__ import annotations

import hashlib
import sys
import time
from contextlib import closing
from itertools import chain, islice
from typing import Any, NamedTuple

from engram.cli.output import say, say_json, show_progress, show_table
from engram.cli.replay import replayed
from engram.codec.codec import Codec
from engram.codec.record import Record
from engram.errors import Corrupt
from engram.image.image import Image
from engram.log.base import Log, NoLog
from engram.log.copy import Copied, Progress, copy_log, event_pages
from engram.log.open import open_log
from engram.shard.reference import resolve_app


def copy_and_compare(reference: str, source_url: str, target_url: str, *, json: bool) -> None:
    """Copies a log, replays both from zero, and raises `Corrupt` after the table if they are not equal."""
    app = resolve_app(reference)
    codec = Codec(app)
    with closing(open_log(source_url, app.name)) as source, closing(_target(target_url, source)) as target:
        started = time.monotonic()
        told = Progress(0, 0, 0, 0)

        def progress(now: Progress) -> None:
            nonlocal told
            told = now
            rate = now.size / 1e6 / (time.monotonic() - started)
            events = f", {now.events:,} events" if now.events else ""
            show_progress(f"copying: {now.records:,} of {now.of:,} records{events}, {rate:.1f} MB/s")

        try:
            copied = copy_log(source, target, progress=progress)
        except KeyboardInterrupt:
            show_progress("")
            print(f"engram: The copy at {target_url} is not whole: remove it, and copy again.", file=sys.stderr)
            raise
        seconds = time.monotonic() - started
        left = sum(source.end(part.partition) - part.records for part in copied)
        try:
            rows = [_compared(part, source, target, codec) for part in copied]
        except Corrupt as problem:
            raise Corrupt(f"All was copied, but it cannot be compared: {problem}") from problem
    show_progress("")
    equal = all(row["equal"] for row in rows)
    if json:
        say_json(
            {
                "app": app.name,
                "seconds": round(seconds, 3),
                "bytes": told.size,
                "left": left,
                "equal": equal,
                "partitions": rows,
            }
        )
    else:
        _show(f"{app.name}: {told.records:,} records, {told.size / 1e6:,.1f} MB, copied in {seconds:.1f} s", rows)
        if left:
            say(f"The log was written to meanwhile: {left:,} newer records are not in the copy.")
    if not equal:
        unequal = ", ".join(str(row["partition"]) for row in rows if not row["equal"])
        raise Corrupt(
            f"The copy at {target_url} is not the same in partitions {unequal}: do not use it. If it was written to "
            "meanwhile, remove it and copy again; otherwise a handler of the app is not deterministic."
        )


def _target(url: str, source: Log) -> Log:
    try:
        return open_log(url, source.app)
    except NoLog:
        return open_log(url, source.app, partitions=source.partitions, create=True)


class _Contents(NamedTuple):
    """What makes two partitions equal."""

    digest: str
    records: str
    events: str


def _compared(part: Copied, source: Log, target: Log, codec: Codec) -> dict[str, Any]:
    of_source = _contents(source, part, codec, events=part.events)
    of_target = _contents(target, part, codec, events=None)
    return {
        "partition": part.partition,
        "records": part.records,
        "events": part.events,
        "digest": of_source.digest,
        "equal": of_source == of_target and target.end(part.partition) == part.records,
    }


def _contents(log: Log, part: Copied, codec: Codec, *, events: int | None) -> _Contents:
    """Of so many events; of all if None."""
    seen, out = hashlib.sha256(), hashlib.sha256()

    def see(_image: Image, record: Record) -> None:
        seen.update(f"{record.kind} {record.time} {len(record.payload)}\n".encode())
        seen.update(record.payload)

    image = replayed(log, codec, part.partition, part.records, check=see)
    for event in islice(chain.from_iterable(event_pages(log, part.partition)), events):
        out.update(f"{event}\n".encode())
    return _Contents(image.digest(), seen.hexdigest(), out.hexdigest())


def _show(title: str, rows: list[dict[str, Any]]) -> None:
    columns = ["partition", "records", "events", "digest", "equal"]
    shown = [
        [r["partition"], f"{r['records']:,}", f"{r['events']:,}", r["digest"][:16], "yes" if r["equal"] else "NO"]
        for r in rows
    ]
    show_table(title, columns, shown)
