"""The log and its events as streams: how far a Structured Streaming job is, for its checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from engram.errors import Misuse
from engram.log.base import Log
from engram.spark.frames.options import number_of
from engram.spark.frames.source import Source, Span
from engram.spark.worker import prepare_worker

# Reads a span of a log that is at a place, as rows.
ReadSpan = Callable[[Any, Any], Iterator[pa.RecordBatch]]


class LogStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Records by their offsets: a place is `{"app": ..., "0": offset, "1": offset, ...}`, the next record of each
    partition. A job that is started again with its checkpoint goes on there.

    `start` is `start` or `end`; `recordsPerBatch` bounds a micro-batch, over all partitions.
    """

    def __init__(self, source: Source, read: ReadSpan) -> None:
        prepare_worker(source.here)  # it is made where it plans, and `source` was made in another process
        self.path = source.there
        self.where = source.where
        self.form = source.form
        self.start = source.options.get("start", "start")
        if self.start not in ("start", "end"):
            raise Misuse(f"The option start of {self.form} is start or end, not {self.start!r}.")
        self.limit = number_of(source.options, "recordsPerBatch", self.form, 0)  # 0: all there is
        self._read = read
        self._until: dict[str, Any] | None = None
        self._log: Log | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        ends = self._ends()
        if self.start == "end":
            return ends
        with closing(self.where.open_log(self.form)) as log:
            return {name: log.start(int(name)) if name.isdigit() else of for name, of in ends.items()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxRows(self.limit) if self.limit else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._until = self._ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The end, or as far as the limit goes: the same number of records of each partition that has more."""
        ends = self._until or self._ends()
        self._check(start, ends)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        behind = [name for name, end in ends.items() if name.isdigit() and start[name] < end]
        if most is None or not behind:
            return ends
        each = max(1, most // len(behind))
        return {**start, **{name: min(ends[name], start[name] + each) for name in behind}}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Span]:
        return [Span(int(name), start[name], end[name]) for name in end if name.isdigit() and start[name] < end[name]]

    def read(self, span: Span) -> Iterator[pa.RecordBatch]:
        prepare_worker(self.path)
        return self._read(self.where, span)

    def stop(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def _ends(self) -> dict[str, Any]:
        if self._log is None:
            self._log = self.where.open_log(self.form)
        log = self._log
        return {"app": log.app, **{str(partition): log.end(partition) for partition in range(log.partitions)}}

    def _check(self, start: dict[str, Any], ends: dict[str, Any]) -> None:
        if start.keys() != ends.keys() or start["app"] != ends["app"]:
            raise Misuse(
                f"The checkpoint is of app {start.get('app')} with {len(start) - 1} partitions, and the log is of "
                f"{ends['app']} with {len(ends) - 1}: it is another log. Use another checkpoint."
            )
        for name, end in ends.items():
            if name.isdigit() and start[name] > end:
                raise Misuse(
                    f"The checkpoint is at record {start[name]} of partition {name}, where the log ends at {end}: "
                    "it is another log, or was cut. Use another checkpoint."
                )
