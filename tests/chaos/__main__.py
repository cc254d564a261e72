"""`make chaos`: storms under load. Ends with exit code 0 if nothing was lost, doubled or out of order.

With `--minutes` one long run, in which processes of every kind are killed and paused, drawn by a seed. Without, the
fixed ones: the long one over three Kafka brokers, a shorter one over SASL_SSL, and follows and unfollows with a shard
killed every second for a minute, on SQLite and on Kafka.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from engram.dev.kafka import Brokers, Security
from rich.console import Console
from rich.live import Live
from rich.table import Table

from tests.chaos import follows
from tests.chaos.endurance import MASTERS, Endurance, Figures
from tests.chaos.storm import (
    TOPIC,
    Fault,
    LoadHadStopped,
    Storm,
    compare,
    kill_leader,
    kill_shard,
    pause_leader,
    running,
)
from tests.dev.certificates import make_certificates

WRITERS = 256
LEAST_RATE = 500.0
_SECURE_RATE = 100.0
_LONG: list[Fault] = [
    kill_leader,
    kill_shard,
    kill_leader,
    pause_leader(20),
    kill_shard,
    kill_leader,
    kill_leader,
    kill_shard,
    pause_leader(20),
    kill_leader,
]
_SHORT: list[Fault] = [kill_leader, kill_shard, pause_leader(20)]
_USER, _PASSWORD = "engram", "storm-secret"
_FOLLOWS_S = 60.0
_FOLLOWS_SHORT_S = 10.0
_FOLLOWS_RATE = 20.0

_console = Console()


def main() -> None:
    parser = argparse.ArgumentParser(description="Faults under load, on Spark and real Kafka brokers.")
    parser.add_argument("--only", choices=["plain", "secure", "follows"], help="one of the storms")
    parser.add_argument("--short", action="store_true", help="three faults instead of ten, seconds instead of a minute")
    parser.add_argument("--minutes", type=float, help="the long run, for so many minutes")
    parser.add_argument("--seed", type=int, default=0, help="of the long run: the same faults in the same order")
    parser.add_argument("--master", action="append", help="of Spark, for the long run; may be repeated")
    parser.add_argument("--report", type=Path, help="a file for the figures of the long run, as JSON")
    arguments = parser.parse_args()
    if arguments.minutes is not None:
        report = arguments.report or Path("artifacts", f"chaos-{arguments.seed}.json")
        _endure(arguments.minutes, arguments.seed, arguments.master or MASTERS, report)
        return
    faults = _SHORT if arguments.short else _LONG
    try:
        if arguments.only in (None, "plain"):
            _plain(faults)
        if arguments.only in (None, "secure"):
            _secure()
        if arguments.only in (None, "follows"):
            _follows(_FOLLOWS_SHORT_S if arguments.short else _FOLLOWS_S)
    except LoadHadStopped as problem:
        raise SystemExit(f"This run does not count: {problem}") from None


def _endure(minutes: float, seed: int, masters: Sequence[str], report: Path) -> None:
    _console.rule(f"Everything killed and paused for {minutes:g} minutes, seed {seed}")
    with (
        Brokers(3) as brokers,
        tempfile.TemporaryDirectory(prefix="engram-chaos-") as folder,
        Live(console=_console, refresh_per_second=2) as live,
    ):
        figures = Endurance(brokers, Path(folder), seed=seed, show=partial(_show_so_far, live)).run(minutes, masters)
    report.parent.mkdir(exist_ok=True)
    report.write_text(json.dumps(figures, indent=2) + "\n")
    table = Table(title=f"Seed {seed}", title_justify="left", show_header=False, min_width=40)
    for name, value in figures.items():
        table.add_row(
            name.replace("_", " "), json.dumps(value) if isinstance(value, bool | list | dict) else f"{value:,}"
        )
    _console.print(table)
    _console.print(f"  {report}")
    wrong = [*figures["anomalies"], *(["lost"] * figures["lost"]), *(["duplicated"] * figures["duplicated"])]
    if wrong or not figures["digests_equal"]:
        raise SystemExit(f"{len(wrong)} anomalies: see {report}")


def _show_so_far(live: Live, figures: Figures) -> None:
    """A table that lives on a terminal; elsewhere a line for each step."""
    if _console.is_terminal:
        live.update(_so_far(figures))
    elif figures.news:
        _console.print(f"  {time.monotonic() - figures.began:.0f} s: {figures.doing}")


def _so_far(figures: Figures) -> Table:
    minutes, seconds = divmod(int(time.monotonic() - figures.began), 60)
    title = f"{minutes}:{seconds:02}  {figures.acknowledged:,} commands acknowledged  {figures.doing}"
    table = Table(title=title, title_justify="left")
    for column in ("fault", "times", "median s to recover", "worst"):
        table.add_column(column)
    for kind in sorted(figures.faults):
        table.add_row(*map(str, figures.row(kind)))
    return table


def _plain(faults: list[Fault]) -> None:
    _console.rule("Three brokers, replication 3, min.insync.replicas 2")
    with Brokers(3) as brokers, tempfile.TemporaryDirectory(prefix="engram-chaos-") as folder:
        log = brokers.url(TOPIC) + "?replication=3&min_insync=2"
        _storm(brokers, log, Path(folder), faults, LEAST_RATE)


def _secure() -> None:
    _console.rule("The same over SASL_SSL, with SCRAM-SHA-256")
    with tempfile.TemporaryDirectory(prefix="engram-chaos-") as folder:
        certificates = make_certificates(Path(folder))
        security = Security(
            protocol="SASL_SSL",
            mechanism="SCRAM-SHA-256",
            users={_USER: _PASSWORD},
            keystore_pem=certificates.keystore,
        )
        options = Path(folder, "client.properties")
        options.write_text(
            f"security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-256\nsasl.plain.username={_USER}\n"
            f"sasl.plain.password={_PASSWORD}\nssl.cafile={certificates.authority}\n"
        )
        with Brokers(3, security=security) as brokers:
            log = f"{brokers.url(TOPIC)}?replication=3&min_insync=2&config={options}"
            _storm(brokers, log, Path(folder), _SHORT, _SECURE_RATE)


def _storm(brokers: Brokers, log: str, folder: Path, faults: list[Fault], least_rate: float) -> None:
    with running(log, folder, "--snapshot-every", "2000", "--snapshot-pause", "0") as url:
        storm = Storm(brokers, log, url, writers=WRITERS, least_rate=least_rate)
        asyncio.run(storm.run(faults, lambda text: _console.print(f"  {text}")))
        _console.print("  comparing clients, state, log, replay and events ...")
        figures = asyncio.run(compare(storm))
    rates = [rate for _, rate, _ in storm.told.faults]
    _show({**figures, "least_commands_per_s_before_a_fault": round(min(rates))})


def _follows(seconds: float) -> None:
    with tempfile.TemporaryDirectory(prefix="engram-chaos-") as folder:
        _console.rule("Follows and unfollows on SQLite, a shard killed every second")
        _follow(f"sqlite:{folder}/follows.db", Path(folder), seconds)
    with Brokers() as brokers, tempfile.TemporaryDirectory(prefix="engram-chaos-") as folder:
        _console.rule("The same on Kafka")
        _follow(brokers.url("follows"), Path(folder), seconds)


def _follow(log: str, folder: Path, seconds: float) -> None:
    with running(
        log, folder, *follows.OPTIONS, "--snapshot-every", "2000", "--snapshot-pause", "0", app=follows.SOCIAL
    ) as url:
        storm = follows.FollowStorm(log, url, users=64, clients=4)
        asyncio.run(storm.run(seconds, lambda text: _console.print(f"  {text}")))
        _console.print("  comparing every pair, state, replay and events ...")
        _show(asyncio.run(follows.compare(storm, least_rate=_FOLLOWS_RATE)))


def _show(figures: dict[str, Any]) -> None:
    table = Table(title="Nothing lost, doubled or out of order", title_justify="left", show_header=False, min_width=40)
    for name, value in figures.items():
        table.add_row(name.replace("_", " "), f"{value:,}" if not isinstance(value, bool) else str(value).lower())
    _console.print(table)


if __name__ == "__main__":
    main()
