"""What the spans of commands are called by: everybody who has the log knows, and nothing is written for it."""

from __future__ import annotations

from hashlib import blake2b

from engram.errors import Unavailable
from engram.log.base import Log
from engram.model.position import Position
from engram.tracing import SpanIds


class CommandIds:
    """Ids by position, for one log. A trace has the id of its root, the command that everything began with.

    The first record of the root's partition is part of it: another log of the same app has other traces.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._first: dict[int, bytes] = {}

    def knows(self, partition: int) -> bool:
        """Whether the ids of roots there can be told without reading the log."""
        return partition in self._first

    def logged(self, root: Position) -> SpanIds:
        """Of the span of a command that was logged, which is the first of its trace. Raises `Unavailable` when the log
        does not answer."""
        return self._ids(root, "log", root)

    def handled(self, root: Position, position: Position) -> SpanIds:
        """Of the span of a command that is handled at a position. The same."""
        return self._ids(root, "handle", position)

    def _ids(self, root: Position, what: str, position: Position) -> SpanIds:
        of = b"%s %s" % (self._first_of(root.partition), str(root).encode())
        trace, span = _digest(of, 16), _digest(b"%s %s %s" % (of, what.encode(), str(position).encode()), 8)
        return SpanIds(trace, span)

    def _first_of(self, partition: int) -> bytes:
        first = self._first.get(partition)
        if first is None:
            records = self._log.read(partition, 0, limit=1)
            if not records:
                raise Unavailable(f"Partition {partition} of the log has no first record.")
            content = b"%s %d %s" % (self._log.app.encode(), records[0].time, records[0].payload)
            first = self._first[partition] = blake2b(content, digest_size=8).digest()
        return first


def _digest(content: bytes, size: int) -> int:
    return int.from_bytes(blake2b(content, digest_size=size).digest()) or 1
