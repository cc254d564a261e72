"""Rows of a read model, as a caller gets them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


class Rows(list[T]):
    """A page of rows. `cursor` is where to go on, None if these were the last: pass it as `after`. It stays valid while
    rows come and go."""

    def __init__(self, rows: Iterable[T], cursor: str | None) -> None:
        super().__init__(rows)
        self.cursor = cursor
