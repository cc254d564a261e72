"""Entities on their way from a shard, which encodes them, to the thread that writes them."""

from __future__ import annotations

import queue
from collections.abc import Iterator

from engram.image.contents import EntityColumns


class Passing:
    """Given by one thread, gone through by another, once. Nobody has to wait to give: it is looked first whether it is
    `full`."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[list[EntityColumns] | Exception | None] = queue.SimpleQueue()

    @property
    def full(self) -> bool:
        """While one slice is written, one may wait: what is on its way takes no more room than that."""
        return not self._queue.empty()

    def give(self, columns: list[EntityColumns]) -> None:
        self._queue.put(columns)

    def end(self) -> None:
        """Everything was given."""
        self._queue.put(None)

    def fail(self, problem: Exception) -> None:
        """The rest will not come: whoever goes through it gets this raised."""
        self._queue.put(problem)

    def __iter__(self) -> Iterator[EntityColumns]:
        while (given := self._queue.get()) is not None:
            if isinstance(given, Exception):
                raise given
            yield from given
