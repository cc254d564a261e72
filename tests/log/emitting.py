"""Events in a log, as a shard would let them out: of records that are there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from engram.codec.record import Kind
from engram.log.base import Entry, Log
from engram.model.effects import OutEvent

NOON = 1_700_000_000_000


def out(
    partition: int,
    offset: int,
    index: int = 0,
    number: int = 0,
    *,
    name: str = "followed",
    time: int = NOON,
    key: str = "ada",
    body: Any = None,
    root: str = "0:0.0",
) -> OutEvent:
    content = json.dumps({"who": key, "whom": "bob"} if body is None else body).encode()
    return OutEvent(partition, offset, index, number, name, 1, time, key, content, root)


def emit(log: Log, partitions: Sequence[int], *, time: int = NOON, **more: Any) -> list[OutEvent]:
    """Appends a record to each of these partitions, one after the other, and the event that its command emits."""
    offsets = log.append([Entry(partition, Kind.TICK, time, b"") for partition in partitions])
    events = [
        out(partition, offset, time=time + number, **more)
        for number, (partition, offset) in enumerate(zip(partitions, offsets, strict=True))
    ]
    log.append([], events)
    return events
