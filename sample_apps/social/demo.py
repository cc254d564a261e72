"""The demo: a social network in memory on Spark, one of its shards killed, nothing lost.

`python -m sample_apps.social.demo [--log kafka] [--report FILE]`, or `make demo`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engram import Client
from engram.log.partitioner import partition_of
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from sample_apps.social import app
from sample_apps.social.queries import Profile, Timeline
from sample_apps.social.traffic import Traffic

_USERS = 120
_COMMANDS = 4000
_AT_ONCE = 32
_SHARDS = 2
_PARTITIONS = 8
_START_S = 90.0
_SETTLE_S = 30.0

_console = Console()


@dataclass
class Report:
    """The figures of one demo. `lost` and `duplicated` are found by comparing live state with what was acknowledged."""

    commands: int = 0
    acknowledged: int = 0
    rejected: int = 0
    lost: int = 0
    duplicated: int = 0
    digests_equal: bool = False
    recovery_s: float = 0.0
    commands_per_s: float = 0.0

    @property
    def good(self) -> bool:
        return self.lost == 0 and self.duplicated == 0 and self.digests_equal and self.acknowledged == self.commands


def main() -> None:
    parser = argparse.ArgumentParser(description="A social network on Engram, with one shard killed on the way.")
    parser.add_argument("--log", choices=["sqlite", "kafka"], default="sqlite", help="where the command log is kept")
    parser.add_argument("--report", type=Path, help="write the figures to this file, as JSON")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="engram-demo-") as folder,
        _log(arguments.log, folder) as log,
        _running(log, folder) as url,
    ):
        report = asyncio.run(_demo(url, log))
    _show(report)
    if arguments.report is not None:
        arguments.report.write_text(json.dumps(asdict(report), indent=2) + "\n")
    raise SystemExit(0 if report.good else 1)


@contextmanager
def _log(kind: str, folder: str) -> Iterator[str]:
    """The URL of a new log; for Kafka, with a real broker that ends with the demo."""
    if kind == "sqlite":
        yield f"sqlite:{folder}/social.db"
        return
    from engram.dev.kafka import Brokers

    _console.print("[bold]Starting[/] a Kafka broker.")
    with Brokers() as brokers:
        yield brokers.url("social")


@contextmanager
def _running(log: str, folder: str) -> Iterator[str]:
    """`engram run`, as a user would start it; yields the address of its gateway."""
    _console.print(f"[bold]Starting[/] the network: {_SHARDS} shards as Spark tasks, {_PARTITIONS} partitions.")
    options = ["--log", log, "--shards", str(_SHARDS), "--partitions", str(_PARTITIONS), "--port", "0", "--json"]
    options += ["--snapshots", f"{folder}/snapshots"]
    command = [sys.executable, "-m", "engram.cli.main", "run", "sample_apps.social:app", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield _wait_until_ready(process)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=_START_S)


def _wait_until_ready(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        event = json.loads(line)
        if event["event"] == "ready":
            _console.print(f"  ready at {event['url']}")
            return str(event["url"])
    raise SystemExit("The network did not start; see the message above.")


async def _demo(url: str, log: str) -> Report:
    report = Report()
    traffic = Traffic(_USERS, random.Random(7))
    async with Client(url, app) as client:
        started = time.monotonic()
        with _progress() as progress:
            task = progress.add_task("registering", total=_USERS)
            await _each(traffic.registrations(client), lambda: progress.advance(task))
            task = progress.add_task("follow, publish, like", total=_COMMANDS)
            half = [traffic.next(client) for _ in range(_COMMANDS // 2)]
            await _each(half, lambda: progress.advance(task))
            killing = asyncio.create_task(_kill_a_shard(client, traffic.users[0]))
            rest = [traffic.next(client) for _ in range(_COMMANDS - len(half))]
            await _each(rest, lambda: progress.advance(task))
        seconds = time.monotonic() - started
        report.recovery_s = round(await killing, 3)
        report.commands = _USERS + _COMMANDS
        report.acknowledged, report.rejected = traffic.acknowledged, traffic.rejected
        report.commands_per_s = round(report.acknowledged / seconds, 1)
        _console.print("[bold]Comparing[/] live state with everything that was acknowledged ...")
        report.lost, report.duplicated = await traffic.compare(client, seconds=_SETTLE_S)
        await _show_someone(client, traffic)
        _console.print("[bold]Replaying[/] the log from zero in a second process ...")
        report.digests_equal = await _digests_equal(client, log)
    return report


async def _each(sending: list[Coroutine[Any, Any, None]], done: Callable[[], None]) -> None:
    """Runs all, `_AT_ONCE` at a time."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def one(coroutine: Coroutine[Any, Any, None]) -> None:
        async with slots:
            await coroutine
        done()

    await asyncio.gather(*map(one, sending))


async def _kill_a_shard(client: Client, user: str) -> float:
    """Kills the shard that serves `user` with SIGKILL; returns the seconds until it answered again."""
    await asyncio.sleep(0.3)  # in the middle of the traffic
    partition = partition_of(user, _PARTITIONS)
    shards = (await client.status())["shards"]
    shard = next(s for s in shards if any(p["partition"] == partition for p in s["partitions"]))
    _console.print(f"[bold red]kill -9 {shard['pid']}[/]: shard {shard['shard']}, with half of all users")
    os.kill(shard["pid"], signal.SIGKILL)
    killed = time.monotonic()
    await client.ask(user, Profile())
    seconds = time.monotonic() - killed
    _console.print(f"[bold green]Shard {shard['shard']} is back[/] after {seconds:.2f} s: Spark restarted its task.")
    return seconds


async def _show_someone(client: Client, traffic: Traffic) -> None:
    user = traffic.users[0]
    card = await client.ask(user, Profile())
    _console.print(
        f"[bold]{card.name}[/] follows {card.following}, is followed by {card.followers}, "
        f"has {card.posts} posts with {card.likes} likes."
    )
    table = Table(title=f"{card.name}'s home timeline, from live state", title_justify="left")
    for column in ("author", "at", "text"):
        table.add_column(column)
    for entry in await client.ask(user, Timeline(limit=5)):
        table.add_row(entry.author, f"{entry.at:%H:%M:%S}", entry.text)
    _console.print(table)


async def _digests_equal(client: Client, log: str) -> bool:
    """Compares every partition's live digest with that of a replay, once both are at the same record."""
    deadline = time.monotonic() + _SETTLE_S
    while time.monotonic() < deadline:
        live = {
            p["partition"]: (p["offset"], p["digest"])
            for shard in (await client.status(digests=True))["shards"]
            for p in shard["partitions"]
        }
        replayed = {p["partition"]: (p["records"], p["digest"]) for p in await asyncio.to_thread(_replay, log)}
        if {p: offset for p, (offset, _) in live.items()} == {p: offset for p, (offset, _) in replayed.items()}:
            return live == replayed
    return False


def _replay(log: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "engram.cli.main", "replay", "sample_apps.social:app", "--log", log, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return list(json.loads(done.stdout)["partitions"])


def _progress() -> Progress:
    columns = [TextColumn("{task.description:24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    return Progress(*columns, console=_console)


def _show(report: Report) -> None:
    table = Table(title="What happened", title_justify="left", show_header=False)
    for name, value in asdict(report).items():
        table.add_row(name.replace("_", " "), f"{value:,}" if not isinstance(value, bool) else str(value).lower())
    _console.print(table)
    _console.print("[bold green]Nothing lost.[/]" if report.good else "[bold red]Something is wrong.[/]")


if __name__ == "__main__":
    main()
