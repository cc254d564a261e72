"""`make pipeline`: the long way of data through everything that is a Spark job, with the social network.

Commands are backfilled from Parquet and handled by the live app, which sends what they lead to and ends with a
savepoint. Then the log is rebuilt into snapshots, queried, repartitioned and archived, each with the `engram` command
as anybody would. What comes out of each is compared with what went in and with the others: counts, and digests. At the
end there is a table of times.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
from engram import Client
from engram.log.open import open_log
from pyarrow import parquet
from rich.console import Console
from rich.table import Table

from sample_apps.social import app

_APP = "sample_apps.social:app"
_WORDS = ["log", "state", "image", "replay", "shard", "epoch", "snapshot", "query", "command", "stream", "memory"]
_ROWS_AT_ONCE = 100_000
_COMMANDS = "select name, count(*) as found from log where name is not null group by name"
_USERS = """select count(*) as users, sum(size(posts)) as posts, sum(size(following)) as following,
    sum(size(followers)) as followers from user"""
_STATE = "select count(*) as entities, bit_xor(xxhash64(entity, key, to_json(state))) as digest from state"
# How often it is looked whether the app has nothing left to do.
_LOOK_S = 1.0
_END_S = 60.0
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
            began = time.monotonic()
            told = step()
            self._times.append((name, time.monotonic() - began, told))
            _CONSOLE.print(f"{name}: {self._times[-1][1]:,.1f} s, {told}", soft_wrap=True)
        table = Table("step", "seconds", "what", title=f"{self._commands:,} commands, {self._users:,} users")
        for name, seconds, told in self._times:
            table.add_row(name, f"{seconds:,.1f}", told)
        _CONSOLE.print(table)

    # Steps

    def _generate(self) -> str:
        rows = what_users_do(self._commands, self._users, Random(8), self._sent)
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

    def _live(self) -> str:
        """The app handles what was backfilled, and all that comes of it."""
        with self._running() as url:
            asyncio.run(self._until_quiet(url))
            saved = json.loads(_engram("savepoint", "whole", "--url", url, "--json"))["snapshots"]
        self._saved = {row["partition"]: row["offset"] for row in saved}
        commands = sum(self._logged().values())
        return f"{commands:,} commands handled, messages to the followed among them; a savepoint at the end"

    def _rebuild(self) -> str:
        told = self._engram("rebuild", "--json")["partitions"]
        for row in told:
            _expect("records that are not rebuilt", row["left"], 0)
            same = [each["offset"] for each in row["compared"] if not each["problem"]]
            _expect("the savepoint is the same", self._saved[row["partition"]] in same, found=True)
        self._ends = {row["partition"]: row["offset"] for row in told}
        return f"{len(told)} snapshots; at the savepoint, the digests are the live app's"

    def _query(self) -> str:
        found, (counts,), self._state = self._sql(self._log, _COMMANDS, _USERS, _STATE)
        _expect("commands in the log", {row["name"]: row["found"] for row in found}, self._logged())
        expected = {"users": self._users, "posts": self._sent["publish"]}
        expected |= dict.fromkeys(("following", "followers"), self._sent["follow"])
        _expect("state", counts, expected)
        return ", ".join(f"{count:,} {name}" for name, count in counts.items())

    def _repartition(self) -> str:
        self._engram("repartition", "--to", str(self._new), "--into", self._new_log)
        (state,) = self._sql(self._new_log, _STATE)
        _expect("state after repartition", state, self._state)
        return f"{self._old} to {self._new}, with the same counts and the same digest of all users"

    def _archive(self) -> str:
        folder = self._folder / "archive"
        told = self._engram("archive", "--to", str(folder), "--trim", "--json")["partitions"]
        _expect("archived up to", {row["partition"]: row["end"] for row in told}, self._ends)
        (found,) = self._sql(f"{self._log}?archive={folder}", _COMMANDS)
        _expect("commands in archive and log", {row["name"]: row["found"] for row in found}, self._logged())
        gone = sum(row["begins"] - row["start"] for row in told)
        return f"{sum(row['added'] for row in told):,} records, {gone:,} of them trimmed; every command is still found"

    # Means

    @property
    def _source(self) -> Path:
        return self._folder / "commands.parquet"

    def _logged(self) -> dict[str, int]:
        return {**self._sent, "gain_follower": self._sent["follow"]}

    @contextmanager
    def _running(self) -> Iterator[str]:
        """The app, until it ends by itself; yields the address of its gateway."""
        command = [*_ENGRAM, "run", _APP, "--log", self._log, "--port", "0", "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                events = (json.loads(line) for line in process.stdout)
                yield next((event["url"] for event in events if event["event"] == "ready"), "")
                process.wait(_END_S)
            finally:
                process.terminate()

    async def _until_quiet(self, url: str) -> None:
        """Returns when there is nothing left to do: all records are handled, and in a while no more have come."""
        before: list[int] = []
        with closing(open_log(self._log, app.name)) as log:
            async with Client(url, app) as client:
                while True:
                    partitions = [each for shard in (await client.status())["shards"] for each in shard["partitions"]]
                    offsets = [each["offset"] for each in sorted(partitions, key=lambda each: int(each["partition"]))]
                    if offsets == before == [log.end(partition) for partition in range(log.partitions)]:
                        return
                    before = offsets
                    await asyncio.sleep(_LOOK_S)

    def _sql(self, log: str, *statements: str) -> list[list[dict[str, Any]]]:
        """The rows of each statement, asked in one session."""
        # Where the rows of one end is not to be seen otherwise.
        given = "; select 'next';".join(statements)
        said = _engram("sql", _APP, "--log", log, "--format", "json", given=given).splitlines()
        answers: list[list[dict[str, Any]]] = [[]]
        for row in map(json.loads, said):
            if "next" in row:
                answers.append([])
            else:
                answers[-1].append(row)
        return answers

    def _engram(self, command: str, *words: str) -> Any:
        """What `engram` says of the app and its old log: JSON, if it is asked for."""
        said = _engram(command, _APP, "--log", self._log, *words)
        return json.loads(said) if "--json" in words else said


_ENGRAM = [sys.executable, "-m", "engram.cli.main"]


def _engram(*words: str, given: str | None = None) -> str:
    done = subprocess.run([*_ENGRAM, *words], input=given, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"`engram {' '.join(words)}` ended with exit code {done.returncode}.")
    return done.stdout


def _expect(what: str, told: Any, found: Any) -> None:
    if told != found:
        raise SystemExit(f"{what}: {told}, and not {found}.")


def what_users_do(count: int, users: int, random: Random, sent: Counter[str]) -> Iterator[tuple[str, str, str, str]]:
    """Id, command, key and body: first everybody registers, then they follow each other and publish."""
    followed: set[tuple[int, int]] = set()
    for number in range(count):
        user = number if number < users else random.randrange(users)
        whom = random.randrange(users)
        if number < users:
            name, body = "register", {"name": f"User {user}"}
        elif random.random() < 0.3 and whom != user and (user, whom) not in followed:
            followed.add((user, whom))
            name, body = "follow", {"whom": f"user{whom}"}
        else:
            name, body = "publish", {"text": " ".join(random.choices(_WORDS, k=4))}
        sent[name] += 1
        yield f"c{number}", name, f"user{user}", json.dumps(body)


STEPS = ["generate", "backfill", "backfill_again", "live", "rebuild", "query", "repartition", "archive"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=5_000_000, help="How many commands.")
    parser.add_argument("--users", type=int, default=100_000)
    parser.add_argument("--partitions", type=int, nargs=2, default=(8, 12), help="Before and after.")
    parser.add_argument("--until", choices=STEPS, default=STEPS[-1], help="The last step.")
    parser.add_argument("--folder", type=Path, help="Where everything is, and stays; else it is gone at the end.")
    options = parser.parse_args()
    if options.count < options.users:
        raise SystemExit(f"{options.count} commands cannot register {options.users} users: use a greater --count.")
    with _folder(options.folder) as folder:
        pipeline = Pipeline(folder, commands=options.count, users=options.users, partitions=tuple(options.partitions))
        pipeline.run(STEPS[: STEPS.index(options.until) + 1])


@contextmanager
def _folder(kept: Path | None) -> Iterator[Path]:
    """The one that was asked for, or one that is gone afterwards."""
    if kept is None:
        with tempfile.TemporaryDirectory(prefix="engram-pipeline-") as folder:
            yield Path(folder)
    elif kept.exists() and any(kept.iterdir()):
        raise SystemExit(f"{kept} is not empty: a run needs a folder of its own.")
    else:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept


if __name__ == "__main__":
    main()
