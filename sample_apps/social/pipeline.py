"""`make pipeline`: the long way of data through everything that is a Spark job, with the social network.

Commands are backfilled from Parquet, the log is rebuilt into snapshots, queried, repartitioned and archived, each with
the `engram` command as anybody would. What comes out is compared with what went in, and with a replay in one process.
At the end there is a table of times.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
from engram.cli.store import store_url
from engram.snapshots.open import open_store
from pyarrow import parquet
from rich.console import Console
from rich.table import Table

from sample_apps.social import app

_APP = "sample_apps.social:app"
_WORDS = ["log", "state", "image", "replay", "shard", "epoch", "snapshot", "query", "command", "stream", "memory"]
_ROWS_AT_ONCE = 100_000
_COUNTS = "select count(*) as users, sum(size(posts)) as posts, sum(size(following)) as following from user"
_CONSOLE = Console()


class Pipeline:
    """One run, in a folder of its own."""

    def __init__(self, folder: Path, *, commands: int, users: int, partitions: tuple[int, int]) -> None:
        self._folder = folder
        self._commands = commands
        self._users = users
        self._old, self._new = partitions
        self._log = f"sqlite:{folder / 'old.db'}"
        self._new_log = f"sqlite:{folder / 'new.db'}"
        self._sent: Counter[str] = Counter()
        self._times: list[tuple[str, float, str]] = []

    def run(self, steps: list[str]) -> None:
        """The steps of these names, in their order; stops at the first that is not as it should be."""
        for name in steps:
            step: Callable[[], str] = getattr(self, f"_{name}")
            _CONSOLE.print(f"{name} ...")
            began = time.monotonic()
            told = step()
            self._times.append((name, time.monotonic() - began, told))
        table = Table("step", "seconds", "what", title=f"{self._commands:,} commands, {self._users:,} users")
        for name, seconds, told in self._times:
            table.add_row(name, f"{seconds:,.1f}", told)
        _CONSOLE.print(table)

    # Steps

    def _generate(self) -> str:
        rows = _commands(self._commands, self._users, Random(8), self._sent)
        schema = pa.schema([(name, pa.string()) for name in ("id", "command", "key", "body")])
        with parquet.ParquetWriter(self._source, schema) as writer:
            while some := list(islice(rows, _ROWS_AT_ONCE)):
                writer.write_table(pa.table([list(column) for column in zip(*some, strict=True)], schema=schema))
        return ", ".join(f"{count:,} {name}" for name, count in sorted(self._sent.items()))

    def _backfill(self) -> str:
        told = self._engram("backfill", "--partitions", str(self._old), "--from", str(self._source), "--json")
        _expect("appended", told["appended"], self._commands)
        rate = self._commands / told["appending_s"]
        return f"{told['planning_s']:,} s to check and pack, then {rate:,.0f} commands/s into the log"

    def _backfill_again(self) -> str:
        told = self._engram("backfill", "--from", str(self._source), "--json")
        _expect("appended by a second run", told["appended"], 0)
        _expect("known to a second run", told["known"], self._commands)
        return "nothing is added twice"

    def _replay(self) -> str:
        """In this machine's one process, for comparison."""
        rows = self._engram("replay", "--json")["partitions"]
        _expect("commands in the log", sum(row["commands"] for row in rows), self._commands)
        self._digests = {row["partition"]: row["digest"] for row in rows}
        return f"{sum(row['entities'] for row in rows):,} entities, in one process"

    def _rebuild(self) -> str:
        self._engram("rebuild")
        store = open_store(store_url(self._log, None), app.name, create=False)
        newest = {partition: store.manifests(partition)[0].digest for partition in store.partitions()}
        _expect("digests of snapshots", newest, self._digests)
        return f"{len(newest)} snapshots, with the digests of the replay"

    def _query(self) -> str:
        self._counts = self._sql(self._log)
        _expect("users", self._counts["users"], self._users)
        return ", ".join(f"{count:,} {name}" for name, count in self._counts.items())

    def _repartition(self) -> str:
        self._engram("repartition", "--to", str(self._new), "--into", self._new_log)
        _expect("counts after repartition", self._sql(self._new_log), self._counts)
        return f"{self._old} to {self._new}, with the same counts"

    def _archive(self) -> str:
        self._engram("archive", "--to", str(self._folder / "archive"))
        kept = sum(1 for _ in (self._folder / "archive").rglob("*.parquet"))
        _expect("archived files are there", kept > 0, found=True)
        return f"{kept} files"

    # Means

    @property
    def _source(self) -> Path:
        return self._folder / "commands.parquet"

    def _sql(self, log: str) -> dict[str, int]:
        (row,) = self._engram("sql", _COUNTS, "--format", "json", log=log)
        return {name: int(value) for name, value in row.items()}

    def _engram(self, *words: str, log: str = "") -> Any:
        """What `engram` prints as JSON, if it does. The first word is the command; the app and the log come next."""
        command = [words[0], _APP, "--log", log or self._log, *words[1:]]
        done = subprocess.run(
            [sys.executable, "-m", "engram.cli.main", *command], stdout=subprocess.PIPE, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"`engram {' '.join(command)}` ended with exit code {done.returncode}.")
        try:
            return json.loads(done.stdout)
        except ValueError:
            return None


def _expect(what: str, told: Any, found: Any) -> None:
    if told != found:
        raise SystemExit(f"{what}: {told}, and not {found}.")


def _commands(count: int, users: int, random: Random, sent: Counter[str]) -> Iterator[tuple[str, str, str, str]]:
    """Id, command, key and body: first everybody registers, then they follow and publish."""
    for number in range(count):
        key = f"user{number if number < users else random.randrange(users)}"
        if number < users:
            name, body = "register", {"name": key.capitalize()}
        elif random.random() < 0.3:
            name, body = "follow", {"whom": f"user{random.randrange(users)}"}
        else:
            name, body = "publish", {"text": " ".join(random.choices(_WORDS, k=4))}
        sent[name] += 1
        yield f"c{number}", name, key, json.dumps(body)


STEPS = ["generate", "backfill", "backfill_again", "replay", "rebuild", "query", "repartition", "archive"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=5_000_000, help="How many commands.")
    parser.add_argument("--users", type=int, default=100_000)
    parser.add_argument("--partitions", type=int, nargs=2, default=(8, 12), help="Before and after.")
    parser.add_argument("--until", choices=STEPS, default=STEPS[-1], help="The last step.")
    options = parser.parse_args()
    if options.count < options.users:
        raise SystemExit(f"{options.count} commands cannot register {options.users} users: use a greater --count.")
    with tempfile.TemporaryDirectory(prefix="engram-pipeline-") as folder:
        pipeline = Pipeline(
            Path(folder), commands=options.count, users=options.users, partitions=tuple(options.partitions)
        )
        pipeline.run(STEPS[: STEPS.index(options.until) + 1])


if __name__ == "__main__":
    main()
