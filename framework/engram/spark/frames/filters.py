"""Filters that Spark pushes down: what of a log need not be read, and which rows need not be made."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)


@dataclass
class Bounds:
    """All filters of a query together. `low` and `high` are included; of times, in milliseconds, they may let a little
    more through: Spark looks again. `texts` has what a text column may be, by its name."""

    low: dict[str, int] = field(default_factory=dict)
    high: dict[str, int] = field(default_factory=dict)
    chosen: dict[str, frozenset[int]] = field(default_factory=dict)
    texts: dict[str, frozenset[str]] = field(default_factory=dict)

    def take(
        self, filters: Iterable[Filter], *, numbers: Sequence[str], texts: Sequence[str], prefix: str = ""
    ) -> Iterator[Filter]:
        """Takes the filters on these columns, whose names in the DataFrame have the prefix; gives back those that Spark
        must apply itself."""
        for each in filters:
            path: tuple[str, ...] = getattr(each, "attribute", ())
            column = path[0].removeprefix(prefix) if len(path) == 1 and path[0].startswith(prefix) else ""
            value = getattr(each, "value", None)
            if column == "time" and isinstance(value, datetime):
                self._take_number(each, column, _milliseconds(value))
                yield each
            elif column in numbers and self._take_number(each, column, value):
                continue
            elif not (column in texts and self._take_text(each, column, value)):
                yield each

    def span(self, column: str, start: int, end: int) -> tuple[int, int]:
        """What is left of the numbers from `start` up to, but without, `end`."""
        chosen = self.chosen.get(column)
        low = max(start, self.low.get(column, start), min(chosen, default=end) if chosen is not None else start)
        high = min(end, self.high.get(column, end) + 1, max(chosen, default=start) + 1 if chosen is not None else end)
        return low, max(low, high)

    def lets(self, column: str, value: int) -> bool:
        chosen = self.chosen.get(column)
        low, high = self.low.get(column), self.high.get(column)
        return (chosen is None or value in chosen) and (low is None or value >= low) and (high is None or value <= high)

    def kept(self, batch: pa.RecordBatch, columns: Iterable[str], prefix: str = "") -> pa.RecordBatch:
        """The rows that all of these columns let through."""
        for column in columns:
            values = self.texts.get(column)
            if values is not None:
                batch = batch.filter(pc.is_in(batch[prefix + column], pa.array(sorted(values), pa.string())))
            wanted = self.chosen.get(column)
            if wanted is not None:
                batch = batch.filter(pc.is_in(batch[prefix + column], pa.array(sorted(wanted), pa.int64())))
        return batch

    def _take_number(self, each: Filter, column: str, value: Any) -> bool:
        if isinstance(each, In) and all(isinstance(one, int) for one in value):
            self._choose(column, frozenset(value))
            return True
        if not isinstance(value, int) or isinstance(value, bool):
            return False
        if isinstance(each, EqualTo | EqualNullSafe):
            self._raise(column, value)
            self._lower(column, value)
            return True
        if isinstance(each, GreaterThan | GreaterThanOrEqual):
            # Of a time in microseconds only its milliseconds are known here: the same one may be after it.
            self._raise(column, value + (isinstance(each, GreaterThan) and column != "time"))
            return True
        if isinstance(each, LessThan | LessThanOrEqual):
            self._lower(column, value - (isinstance(each, LessThan) and column != "time"))
            return True
        return False

    def _take_text(self, each: Filter, column: str, value: Any) -> bool:
        if isinstance(each, EqualTo | EqualNullSafe) and isinstance(value, str):
            found = frozenset([value])
        elif isinstance(each, In) and all(isinstance(one, str) for one in value):
            found = frozenset(value)
        else:
            return False
        self.texts[column] = self.texts.get(column, found) & found
        return True

    def _choose(self, column: str, values: frozenset[int]) -> None:
        self.chosen[column] = self.chosen.get(column, values) & values

    def _raise(self, column: str, value: int) -> None:
        self.low[column] = max(value, self.low.get(column, value))

    def _lower(self, column: str, value: int) -> None:
        self.high[column] = min(value, self.high.get(column, value))


def _milliseconds(moment: datetime) -> int:
    return math.floor(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() * 1000)
