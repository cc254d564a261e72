"""Results that come one by one, in any order, for one who waits for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Gathering(Generic[T]):
    """So many results, by number. One future for all: a batch of a thousand commands has no thousand tasks.

    Lives on one event loop.
    """

    __slots__ = ("_future", "_missing", "results")

    def __init__(self, count: int) -> None:
        self.results: list[T | None] = [None] * count
        self._missing = count
        self._future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not count:
            self._future.set_result(None)

    def put(self, number: int, result: T) -> None:
        """The first result of a number counts; the same may be told twice."""
        if self.results[number] is None:
            self.results[number] = result
            self._missing -= 1
            if not self._missing:
                self.give_up()

    @property
    def complete(self) -> bool:
        return not self._missing

    def missing(self) -> Iterator[int]:
        return (number for number, result in enumerate(self.results) if result is None)

    def give_up(self) -> None:
        """Nobody waits any longer, whatever is missing."""
        if not self._future.done():
            self._future.set_result(None)

    async def wait(self) -> None:
        await self._future
