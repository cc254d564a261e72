"""What the formats share: how one is opened, and what a task reads."""

from __future__ import annotations

from collections.abc import MutableMapping
from contextlib import closing
from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql.datasource import CaseInsensitiveDict, DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from engram.spark.frames.filters import Bounds
from engram.spark.frames.options import Where
from engram.spark.worker import prepare_worker


@dataclass
class Span(InputPartition):
    """The records of a partition from `start` up to, but without, `end`: what one task reads."""

    partition: int
    start: int
    end: int


class Source(DataSource):
    """A format of ours. Registering sets where modules are found by the processes that Spark starts: `here` is for
    those of the driver's machine, where a read is planned, and `there` for executors, that read."""

    form: ClassVar[str]
    more: ClassVar[tuple[str, ...]] = ()  # options besides those of `Where`
    here: ClassVar[tuple[str, ...]] = ()
    there: ClassVar[tuple[str, ...]] = ()

    def __init__(self, options: MutableMapping[str, str]) -> None:
        prepare_worker(self.here)
        self.options = CaseInsensitiveDict(options)  # Spark gives their names in small letters
        self.where = Where.of(options, self.form, self.more)

    @classmethod
    def name(cls) -> str:
        return cls.form


class Reader(DataSourceReader):
    """Reads a format. What is pushed down is in `bounds`."""

    def __init__(self, source: Source, schema: StructType) -> None:
        prepare_worker(source.here)  # it is made where it plans, and `source` was made in another process
        self.path = source.there
        self.where = source.where
        self.options = source.options
        self.spark_schema = schema
        self.bounds = Bounds()

    def chosen(self, partitions: int) -> list[int]:
        """The partitions that the filters let through."""
        return [partition for partition in range(partitions) if self.bounds.lets("partition", partition)]

    def spans(self, form: str, *, there: bool = False) -> list[Span]:
        """The records of each partition that the filters let through; with `there`, without those that were trimmed."""
        with closing(self.where.open_log(form)) as log:
            begins = {p: log.start(p) if there else 0 for p in self.chosen(log.partitions)}
            found = [(p, *self.bounds.span("offset", begin, log.end(p))) for p, begin in begins.items()]
        return [Span(*span) for span in found if span[1] < span[2]]
