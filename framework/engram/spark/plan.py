"""A plan of a backfill: which records are to be appended, made once, sealed, and then appended as often as it takes.

A folder of Parquet, a partition's records in its order, each with the ids of its rows. The plan's name is the session
of its commands, and their numbers in the plan are their sequence: whoever appends it again appends the same.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from engram.errors import Corrupt
from engram.snapshots.files import FileStorage

_SEAL = "sealed.json"
_DONE = "done.json"
_AT_ONCE = 64


class Seal(BaseModel):
    """What a plan is for, and what is in it. `ends` is where the log's partitions ended before anything of it was
    appended."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    app: str
    partitions: int
    source: str
    ends: list[int]
    commands: list[int]
    bad: int
    known: int


class Planned(NamedTuple):
    """A record of a plan: the sequence of its first command, how many it holds, and its payload."""

    first: int
    count: int  # type: ignore[assignment]  # a field, not tuple.count
    payload: bytes


@dataclass(frozen=True, slots=True)
class Plan:
    """One plan in its folder. `name` is its own for ever."""

    folder: Path

    @classmethod
    def new(cls, plans: Path) -> Plan:
        """A place for a new one; what an earlier run has left unsealed there stays and does no harm."""
        return cls(plans / f"backfill-{secrets.token_hex(6)}")

    @classmethod
    def sealed_in(cls, plans: Path) -> list[Plan]:
        """All that were sealed, done or not."""
        return [cls(seal.parent) for seal in sorted(plans.glob(f"*/{_SEAL}"))]

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def bad_rows(self) -> Path:
        return self.folder / "bad.jsonl"

    @property
    def is_done(self) -> bool:
        return (self.folder / _DONE).exists()

    def seal(self, seal: Seal) -> None:
        """From now on it is to be appended."""
        for path in self.data.rglob("*.parquet"):  # Spark leaves that to the system
            with path.open("rb") as file:
                os.fsync(file.fileno())
        FileStorage(self.folder).write(_SEAL, seal.model_dump_json().encode())

    def read_seal(self) -> Seal:
        try:
            return Seal.model_validate_json((self.folder / _SEAL).read_bytes())
        except ValueError as problem:
            raise Corrupt(f"The plan {self.folder} cannot be read: {problem}") from problem

    def mark_done(self) -> None:
        """All of it is in the log."""
        FileStorage(self.folder).write(_DONE, b"{}")

    def write(self, packed: Any) -> None:
        """The records of a DataFrame, all of a partition in one of its own."""
        # Without this order Spark sorts by the partition alone before it writes, and what of that goes to disk
        # meanwhile comes back in any order.
        ordered = packed.sortWithinPartitions("partition", "first")
        ordered.write.partitionBy("partition").parquet(str(self.data))

    def counts(self) -> dict[int, int]:
        """How many rows there are of each partition."""
        partitions = [int(folder.name.partition("=")[2]) for folder in self.data.glob("partition=*")]
        return {partition: self.count(partition) for partition in partitions}

    def count(self, partition: int) -> int:
        """How many rows there are of a partition. Raises `Corrupt` unless they are all there and in their order: of a
        session, a command that comes after a later one counts as handled."""
        from pyarrow import parquet

        count = 0
        for path in self._files(partition):
            columns = parquet.read_table(path, columns=["first", "count"]).to_pydict()
            for first, of_record in zip(columns["first"], columns["count"], strict=True):
                if first != count:
                    raise Corrupt(f"The plan {path} is not in its order: at command {count:,} it has {first:,}.")
                count += of_record
        return count

    def records(self, partition: int, *, after: int = -1) -> Iterator[Planned]:
        """A partition's records in their order, those whose first command is after `after`."""
        from pyarrow import dataset

        for path in self._files(partition):
            file = dataset.dataset(path, format="parquet")
            later: Any = dataset.field("first") > after
            for batch in file.to_batches(
                columns=list(Planned._fields), filter=later, batch_size=_AT_ONCE, use_threads=False
            ):
                yield from map(
                    Planned._make, zip(*(batch.column(name).to_pylist() for name in Planned._fields), strict=True)
                )

    def _files(self, partition: int) -> list[Path]:
        """One task has written them all: in files by its order, in each file by the record's."""
        return sorted((self.data / f"partition={partition}").glob("*.parquet"))
