"""`engram shadow` on real Spark: what a new version would have done otherwise, over both logs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from engram.codec.codec import Codec
from engram.codec.record import Envelope, Kind, Record, encode_commands
from engram.dev.kafka import Brokers
from engram.image.image import Image
from engram.log.base import Entry
from engram.log.open import open_log
from engram.log.partitioner import partition_of
from engram.shard.reference import resolve_app_at
from engram.shard.shadow import Shadow
from engram.snapshots.base import Contents
from engram.snapshots.open import open_store
from engram.spark.shadow import Compared, ShadowJob, compare_versions
from engram.spark.spark import Spark
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from tests.spark.purses import MOST, new, old
from tests.spark.quick import QUICK, QUICK_OPTIONS
from tests.spark.running import ROOT
from tests.spark.tasks import KillOnce

PARTITIONS = 3
AMOUNTS = [n * 37 % 150 for n in range(400)]
KEYS = 11


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spark]:
    log_file = tmp_path_factory.mktemp("spark") / "spark.log"
    with Spark(name="shadow", master="local[2]", slots=1, log_file=log_file, settings=QUICK) as spark:
        yield spark


def payment(number: int, amount: int) -> Envelope:
    return Envelope("pay", 1, f"key{number % KEYS}", b'{"amount":%d}' % amount, f"s{number}", 0)


def write(url: str) -> None:
    """The log of all payments, ten to a record."""
    by_partition: dict[int, list[Envelope]] = {}
    for number, amount in enumerate(AMOUNTS):
        envelope = payment(number, amount)
        by_partition.setdefault(partition_of(envelope.key, PARTITIONS), []).append(envelope)
    with closing(open_log(url, old.name, partitions=PARTITIONS, create=True)) as log:
        for partition, envelopes in sorted(by_partition.items()):
            for start in range(0, len(envelopes), 10):
                payload = encode_commands(envelopes[start : start + 10], "")
                log.append([Entry(partition, Kind.COMMANDS, 1000 + start, payload)])


def job(url: str, *, new_app: str = "new", savepoint: str = "", snapshots: str = "") -> ShadowJob:
    with closing(open_log(url, old.name)) as log:
        ends = tuple(log.end(partition) for partition in range(log.partitions))
    return ShadowJob(
        old="tests.spark.purses:old",
        new=f"tests.spark.purses:{new_app}",
        old_path="",
        log=url,
        snapshots=snapshots,
        savepoint=savepoint,
        ends=ends,
        examples=5,
    )


def sums(found: list[Compared]) -> dict[tuple[str, str], tuple[int, int]]:
    names = {name for each in found for name in each.compared | each.different}
    return {
        name: (sum(each.compared[name] for each in found), sum(each.different[name] for each in found))
        for name in sorted(names)
    }


LARGE = [n for n, amount in enumerate(AMOUNTS) if amount > MOST]
# A large payment changes the reply itself, and those of all later ones of the same purse.
CHANGED = [n for n in range(len(AMOUNTS)) if any(m <= n and m % KEYS == n % KEYS for m in LARGE)]
PURSES = {n % KEYS for n in LARGE}


def check(found: list[Compared]) -> None:
    assert sums(found) == {
        ("reply", "pay"): (len(AMOUNTS), len(CHANGED)),
        ("event", "paid"): (len(AMOUNTS), len(LARGE)),
        ("message", "tip"): (len(AMOUNTS), len(LARGE)),
        ("state", "purse"): (KEYS, len(PURSES)),
        ("answer", "money"): (KEYS, len(PURSES)),
    }
    assert all(sum(e.kind == "event" for e in each.examples) <= 5 for each in found)
    event = next(e for each in found for e in each.examples if e.kind == "event")
    assert json.loads(event.old)[1]["currency"] == "EUR"  # brought up: another shape alone is no difference
    assert event.new == ""
    reply = next(e for each in found for e in each.examples if e.kind == "reply")
    assert json.loads(reply.new)[0] == "rejected"
    assert reply.position.count(":") == 1


def test_replies_events_messages_states_and_answers_are_compared(spark: Spark, tmp_path: Path):
    """Each difference that the new version's one new rule makes is counted; another shape of events is none."""
    url = f"sqlite:{tmp_path / 'log.db'}"
    write(url)

    check(compare_versions(spark, job(url), on_progress=lambda _: None))


@pytest.mark.kafka
def test_a_log_on_kafka_gives_the_same_although_a_task_is_killed(spark: Spark, kafka: Brokers):
    """SIGKILL of the tasks' processes at their first word: Spark starts them again, and the comparison is the same."""
    url = kafka.url("shadowed")
    write(url)
    kill = KillOnce(spark)

    check(compare_versions(spark, job(url), on_progress=kill))
    assert kill.victims


def test_a_shadow_can_begin_at_a_savepoint(spark: Spark, tmp_path: Path):
    """Only what comes after it is compared, from the same state."""
    url, place = f"sqlite:{tmp_path / 'log.db'}", str(tmp_path / "snapshots")
    write(url)
    store = open_store(place, old.name)
    with closing(open_log(url, old.name)) as log:
        for partition in range(PARTITIONS):
            image = Image(partition, Codec(old))
            for record in log.read(partition, 0, limit=1000):
                image.handle(record)
            freeze = image.begin_freeze()
            while freeze.advance(1000):
                pass
            contents = Contents(freeze.columns, freeze.memory, image.count(), savepoint="last")
            store.publish(partition, contents, created=1)
        last = payment(1000 * KEYS, MOST + 1)  # a session of its own
        log.append([Entry(partition_of(last.key, PARTITIONS), Kind.COMMANDS, 9999, encode_commands([last], ""))])

    found = compare_versions(spark, job(url, savepoint="last", snapshots=place), on_progress=lambda _: None)

    assert sum(each.records for each in found) == 1
    assert sums(found)["reply", "pay"] == (1, 1)
    assert sums(found)["state", "purse"] == (KEYS, 1)


def test_a_record_that_the_new_version_cannot_read_is_told(spark: Spark, tmp_path: Path):
    """The new version would stop there, and so does the comparison of the partition."""
    url = f"sqlite:{tmp_path / 'log.db'}"
    write(url)
    greeting = Envelope("greet", 1, "key0", b"{}", "g", 0)
    with closing(open_log(url, old.name)) as log:
        log.append([Entry(partition_of("key0", PARTITIONS), Kind.COMMANDS, 9999, encode_commands([greeting], ""))])

    found = compare_versions(spark, job(url, new_app="poorer"), on_progress=lambda _: None)

    (told,) = (e for each in found for e in each.examples if e.kind == "record")
    assert "no command named 'greet'" in told.new


def test_the_command_prints_a_table_and_writes_parquet(tmp_path: Path):
    """And refuses a report's folder that is there, in one sentence, before it starts Spark."""
    url = f"sqlite:{tmp_path / 'log.db'}"
    write(url)
    command = [sys.executable, "-m", "engram.cli.main", "shadow", "tests.spark.purses:old", "tests.spark.purses:new"]
    command += QUICK_OPTIONS
    options = ["--log", url, "--report", str(tmp_path / "report"), "--master", "local[2]"]
    first = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, check=False)
    again = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, check=False)

    assert first.returncode == 0, first.stderr
    assert "purses: version 1 and version 2 over" in first.stdout
    compared = {row["kind"]: row for row in parquet.read_table(tmp_path / "report" / "compared.parquet").to_pylist()}
    assert compared["reply"] == {"kind": "reply", "name": "pay", "compared": 400, "different": len(CHANGED)}
    assert parquet.read_table(tmp_path / "report" / "differences.parquet").num_rows > 0
    assert again.returncode == 2
    assert "is there already: choose another folder for the report." in again.stderr


def test_two_versions_with_the_same_module_names_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The old one's code is in a folder of its own, and the new one's modules stay as they are."""
    for name, version in (("before", 1), ("after", 2)):
        package = tmp_path / name / "shop_of_two_ages"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("from shop_of_two_ages.app import app\n")
        (package / "app.py").write_text(
            "from dataclasses import dataclass\nfrom engram import App, Command, Entity\n"
            '@dataclass(slots=True)\nclass Thing(Entity, name="thing"):\n    pass\n'
            'class Do(Command[Thing, None], name="do"):\n    def handle(self, thing, ctx):\n        pass\n'
            f'app = App("shop", version={version}, commands=[Do])\n'
        )
    monkeypatch.syspath_prepend(str(tmp_path / "after"))
    reference = "shop_of_two_ages:app"
    versions = [
        resolve_app_at(reference).version,
        resolve_app_at(reference, str(tmp_path / "before")).version,
        resolve_app_at(reference).version,
    ]

    assert versions == [2, 1, 2]


@given(st.lists(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 200)), min_size=1, max_size=5), max_size=8))
def test_a_version_does_not_differ_from_itself(records: list[list[tuple[int, int]]]):
    """Whatever is in the log; and what differs from another version is what its rule says."""
    same = Shadow(Image(0, Codec(old)), Image(0, Codec(old)), examples=1)
    other = Shadow(Image(0, Codec(old)), Image(0, Codec(new)), examples=1)
    large = 0
    for offset, payments in enumerate(records):
        envelopes = [
            Envelope("pay", 1, f"key{key}", b'{"amount":%d}' % amount, f"{offset}.{n}", 0)
            for n, (key, amount) in enumerate(payments)
        ]
        large += sum(amount > MOST for _, amount in payments)
        record = Record(0, offset, Kind.COMMANDS, 1, encode_commands(envelopes, ""))
        assert same.handle(record)
        assert other.handle(record)
    same.finish()
    other.finish()

    assert not same.different
    assert other.different["event", "paid"] == large
