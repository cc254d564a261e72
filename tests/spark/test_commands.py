"""Every command that is a job for Spark, as a user runs it, one after the other on one log: what went in comes out."""

from __future__ import annotations

import csv
import json
import os
import secrets
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from engram.dev.kafka import Brokers
from engram.image.outcome import Outcome
from engram.log.open import open_log
from engram.log.partitioner import partition_of
from engram.snapshots.files import FileSnapshots
from pyarrow import parquet

from tests.shard.network import Network, Owner
from tests.spark.purses import MOST, PayOld, Purse, old
from tests.spark.quick import QUICK_OPTIONS
from tests.spark.running import ROOT, START_S

OLD, NEW = "tests.spark.purses:old", "tests.spark.purses:new"
BEFORE, AFTER = 2, 3  # partitions
KEYS = [f"key{number}" for number in range(7)]
# Of clients, after the backfill; it lives in another partition of the new log.
MOVED = next(key for key in KEYS if partition_of(key, BEFORE) != partition_of(key, AFTER))
BACKFILLED = [(KEYS[number % 7], number * 37 % 150) for number in range(80)]
LIVE = [(MOVED, 5), (MOVED, 7)]
PAID = [*BACKFILLED, *LIVE]
BAD = [("b1", "steal", "key1", "3"), ("b2", "pay", "key2", "many")]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


class Purses:
    """The app on an old log and, once it was moved there, on a new one."""

    def __init__(self, folder: Path, old_log: str, new_log: str) -> None:
        self.folder = folder
        self.logs = {"old": old_log, "new": new_log}

    def snapshots(self, name: str) -> Path:
        return self.folder / f"{name}-snapshots"

    def command(self, *words: str, log: str = "", code: int = 0) -> str:
        """What a command says on stdout; on stderr, if its exit code is to be another than 0."""
        where = ["--log", log or self.logs["old"], "--master", "local[1]"]
        line = [sys.executable, "-m", "engram.cli.main", *words, *where, *QUICK_OPTIONS]
        wide = {**os.environ, "COLUMNS": "200"}
        told = subprocess.run(line, cwd=ROOT, env=wide, capture_output=True, text=True, timeout=START_S, check=False)
        assert told.returncode == code, told
        return told.stderr if code else told.stdout

    def network(self, name: str) -> Network:
        url = self.logs[name]
        store = FileSnapshots(self.snapshots(name), old.name)
        return Network(app=old, log=open_log(url, old.name), store=store, reopen=lambda: open_log(url, old.name))

    def ends(self) -> dict[int, tuple[int, int]]:
        """Where each partition of the old log begins, and where it ends."""
        with closing(open_log(self.logs["old"], old.name)) as log:
            return {partition: (log.start(partition), log.end(partition)) for partition in range(log.partitions)}

    @property
    def on_kafka(self) -> bool:
        return self.logs["old"].startswith("kafka")

    @property
    def source(self) -> Path:
        return self.folder / "payments.csv"

    @property
    def archive(self) -> Path:
        return self.folder / "archive"

    def write_source(self) -> None:
        rows = [(f"p{number}", "pay", key, amount) for number, (key, amount) in enumerate(BACKFILLED)]
        with self.source.open("w", newline="") as file:
            csv.writer(file).writerows([("id", "command", "key", "amount"), *rows, *BAD])


@pytest.fixture(params=["sqlite", "kafka"])
def purses(request: pytest.FixtureRequest, tmp_path: Path) -> Purses:
    if request.param == "sqlite":
        return Purses(tmp_path, *(f"sqlite:{tmp_path / name}.db" for name in ("old", "new")))
    brokers: Brokers = request.getfixturevalue("kafka")
    mark = secrets.token_hex(4)
    return Purses(tmp_path, *(brokers.url(f"{name}-{mark}") for name in ("old", "new")))


def test_one_log_goes_through_every_command(purses: Purses):
    """Backfilled, handled, rebuilt, moved to more partitions, archived, asked, and tried with a new version."""
    backfill(purses)
    replies = live(purses)
    rebuild(purses)
    repartition(purses)
    resend(purses, replies)
    archive(purses)
    ask(purses)
    shadow(purses)


def backfill(purses: Purses) -> None:
    """Good rows are in the log, bad ones in a file with their reasons; the exit code says that there are some."""
    purses.write_source()
    bad, plans = purses.folder / "bad.jsonl", purses.folder / "plans"
    where = ["--from", str(purses.source), "--plans", str(plans), "--partitions", str(BEFORE)]
    said = purses.command("backfill", OLD, *where, "--bad", str(bad), code=2)

    assert said == f"engram: 2 rows of {purses.source} are bad and not in the log: the reasons are in {bad}.\n"
    reasons = {row["id"]: row["reason"] for row in map(json.loads, bad.read_text().splitlines())}
    assert reasons.keys() == {"b1", "b2"}
    assert reasons["b1"].startswith("App purses has no command named 'steal'")
    assert "amount" in reasons["b2"]


def live(purses: Purses) -> list[Outcome]:
    """The app handles all of it and, after a savepoint, two commands of clients, whose replies are given back."""
    network = purses.network("old")
    owner = network.start()
    network.settle(owner)
    owner.stop(savepoint="noon")
    owner = network.start()
    replies = send(network, owner, ["s", "t"])
    owner.stop()
    network.close()
    network.log.close()
    return replies


def send(network: Network, owner: Owner, sessions: list[str]) -> list[Outcome]:
    """What becomes of the clients' commands: the first is its session's number 3, the other has an idempotency key."""
    first, other = [PayOld(amount=amount) for _, amount in LIVE]
    positions = [
        network.send(MOVED, first, session=sessions[0], sequence=3),
        network.send(MOVED, other, session=sessions[1], idempotency_key="once"),
    ]
    network.settle(owner)
    told = {(each.partition, each.offset): each.outcomes for each in owner.replies()}
    return [told[place.partition, place.offset][place.index] for place in positions]


def rebuild(purses: Purses) -> None:
    """The digests are those of the live app, and of a replay; from scratch, nothing that lies about is gone on with."""
    network = purses.network("old")
    loaded = network.store.newest(0)
    wrong = loaded.contents._replace(memory=loaded.memory.model_copy(update={"time": 7, "offset": 1}))
    FileSnapshots(purses.snapshots("old") / "rebuild.work" / "1", old.name).publish(0, wrong, created=0)
    where = ["--snapshots", str(purses.snapshots("old"))]
    told = json.loads(purses.command("rebuild", OLD, *where, "--from-scratch", "--json"))["partitions"]
    digests = {partition: network.replayed(partition).digest() for partition in range(BEFORE)}
    network.log.close()

    assert {row["partition"]: row["digest"] for row in told} == digests
    assert {row["partition"]: (row["begun"], row["offset"]) for row in told} == purses.ends()
    assert [[one["problem"] for one in row["compared"]] for row in told] == [["", ""], ["", ""]]
    assert sum(row["commands"] for row in told) == 2 * len(PAID)  # each sends a tip
    if purses.on_kafka:
        return  # a table is printed there as it is here
    table = purses.command("rebuild", OLD, *where)
    assert f"purses: {2 * len(PAID)} commands handled" in table
    assert all(digest[:16] in table for digest in digests.values())


def repartition(purses: Purses) -> None:
    """Every purse is in one of the new partitions, as it was, and the old log is not touched."""
    before = purses.ends()
    snapshots = ["--snapshots", str(purses.snapshots("old")), "--into-snapshots", str(purses.snapshots("new"))]
    words = ["--to", str(AFTER), "--into", purses.logs["new"], *snapshots, "--json"]
    told = json.loads(purses.command("repartition", OLD, *words))

    assert (told["from"], told["to"], len(told["partitions"])) == (BEFORE, AFTER, AFTER)
    assert sum(row["entities"] for row in told["partitions"]) == len(expected())
    assert purses.ends() == before


def resend(purses: Purses, replies: list[Outcome]) -> None:
    """What clients send again after the move gets its first reply, and changes nothing: by its session and number, and
    by its idempotency key from whatever session."""
    network = purses.network("new")
    owner = network.start()
    again = send(network, owner, ["s", "another"])
    images = [owner.image(partition) for partition in range(AFTER)]
    found = {key: image.find(Purse, key) for image in images for key in [*image._homes[Purse].all_keys()]}
    owner.stop()
    network.close()
    network.log.close()

    assert again == replies
    assert {key: (purse.money, purse.tips) for key, purse in found.items()} == expected()


def archive(purses: Purses) -> None:
    """All that is older than the newest snapshot is archived, and what is older than the savepoint trimmed."""
    before = purses.ends()
    words = ["--to", str(purses.archive), "--snapshots", str(purses.snapshots("old")), "--trim", "--json"]
    told = json.loads(purses.command("archive", OLD, *words))

    store = FileSnapshots(purses.snapshots("old"), old.name)
    noon = {partition: store.savepoint(partition, "noon").offset for partition in range(BEFORE)}
    assert {row["partition"]: (row["start"], row["end"]) for row in told["partitions"]} == before
    assert sum(row["added"] for row in told["partitions"]) == sum(end for _, end in before.values())
    assert purses.ends() == {partition: (noon[partition], end) for partition, (_, end) in before.items()}


def ask(purses: Purses) -> None:
    """Archive and log are one to SQL: every command is there, and the state at the end is what they come to."""
    commands = "select name as key, count(*) as money, 0 as tips from log where name is not null group by name"
    statement = f"{commands} union all select key, money, tips from purse"
    said = purses.command("sql", OLD, statement, "--json", log=joined(purses))

    rows = {row["key"]: (row["money"], row["tips"]) for row in map(json.loads, said.splitlines())}
    assert rows == {"pay": (len(PAID), 0), "tip": (len(PAID), 0), **expected()}


def shadow(purses: Purses) -> None:
    """What the new version's one new rule makes of it, over archive and log: as a table, and as Parquet."""
    report = purses.folder / "report"
    table = purses.command("shadow", OLD, NEW, "--report", str(report), log=joined(purses))

    compared = parquet.read_table(report / "compared.parquet").to_pylist()
    large = [amount for _, amount in PAID if amount > MOST]
    others = {key for key, amount in PAID if amount > MOST}
    changed = [key for number, (key, _) in enumerate(PAID) if any(k == key and a > MOST for k, a in PAID[: number + 1])]
    assert {(row["kind"], row["name"]): (row["compared"], row["different"]) for row in compared} == {
        ("reply", "pay"): (len(PAID), len(changed)),
        ("event", "paid"): (len(PAID), len(large)),
        ("message", "tip"): (len(PAID), len(large)),
        ("state", "purse"): (len(expected()), len(others)),
        ("answer", "money"): (len(expected()), len(others)),
    }
    examples = parquet.read_table(report / "differences.parquet").to_pylist()
    assert Counter(row["kind"] for row in examples)["event"] == len(large)
    records = sum(end for _, end in purses.ends().values())
    assert f"purses: version 1 and version 2 over {records} records" in " ".join(table.split())


def joined(purses: Purses) -> str:
    url = purses.logs["old"]
    return f"{url}{'&' if '?' in url else '?'}archive={purses.archive}"


def expected() -> dict[str, tuple[Any, int]]:
    """Money and tips of every purse."""
    money: Counter[str] = Counter()
    for key, amount in PAID:
        money[key] += amount
    return {**{key: (amount, 0) for key, amount in money.items()}, "waiter": (0, len(PAID))}
