"""`engram backfill` on real Spark: from files of each kind into both logs, once, whatever is killed and run again."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from engram.codec.codec import Codec
from engram.dev.kafka import Brokers
from engram.errors import Corrupt, Misuse
from engram.image.image import Image
from engram.log.open import open_log
from engram.shard.replay import replay_until
from engram.spark.backfill import Added, Backfill, append_plan, finish_plans, make_plan
from engram.spark.packing import PACKED, Pack
from engram.spark.plan import Plan
from engram.spark.rows import BAD, RowChecker
from engram.spark.spark import Spark
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from tests.serving.counter import app as counters
from tests.spark.ledger import app
from tests.spark.quick import QUICK, QUICK_OPTIONS
from tests.spark.running import ROOT, START_S, eventually
from tests.spark.tasks import KillOnce

PARTITIONS = 3
KEYS = 7
# What is sorted goes to disk meanwhile, and is merged again, as it is when there are millions of rows.
SPILLING = {**QUICK, "spark.shuffle.spill.numElementsForceSpillThreshold": "1000"}


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spark]:
    log_file = tmp_path_factory.mktemp("spark") / "spark.log"
    with Spark(name="backfill", master="local[2]", slots=1, log_file=log_file, settings=SPILLING) as spark:
        yield spark


def rows(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [
        {"id": f"row-{n}", "command": "add", "key": f"key{n % KEYS}", "number": n} for n in range(start, start + count)
    ]


def write_csv(path: Path, some: list[dict[str, Any]]) -> str:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(some[0]))
        writer.writeheader()
        writer.writerows(some)
    return str(path)


def write_parquet(path: Path, some: list[dict[str, Any]]) -> str:
    parquet.write_table(pa.Table.from_pylist(some), path)
    return str(path)


def write_lines(path: Path, some: list[dict[str, Any]]) -> str:
    """With the fields in one column, as JSON text."""
    lines = [{**row, "body": json.dumps({"number": row.pop("number")})} for row in map(dict, some)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def run(spark: Spark, log_url: str, source: str, plans: Path, **more: str) -> Added:
    """As the command does, in this process."""
    job = Backfill(app="tests.spark.ledger:app", log=log_url, source=source, plans=plans, **more)
    with closing(open_log(log_url, app.name, partitions=PARTITIONS, create=True)) as log:
        finish_plans(spark, job, app, log, on_progress=lambda _: None)
        plan = make_plan(spark, job, app, log, on_progress=lambda _: None)
        return append_plan(spark, job, app, plan, on_progress=lambda _: None)


def entries(log_url: str) -> dict[str, list[int]]:
    """What is in the ledgers after a replay."""
    found: dict[str, list[int]] = {}
    with closing(open_log(log_url, app.name)) as log:
        for partition in range(log.partitions):
            image = Image(partition, Codec(app))
            replay_until(image, log, log.end(partition), effects=lambda _: None, progress=lambda: None)
            found |= {key: list(ledger.entries) for key, ledger in image.entities["ledger"].items()}
    return dict(sorted(found.items()))


def expected(numbers: range) -> dict[str, list[int]]:
    return {f"key{k}": [n for n in numbers if n % KEYS == k] for k in range(KEYS)}


def ends(log_url: str) -> list[int]:
    with closing(open_log(log_url, app.name)) as log:
        return [log.end(partition) for partition in range(log.partitions)]


def test_files_of_each_kind_are_added_once_and_in_order(spark: Spark, tmp_path: Path):
    """Parquet, CSV and JSON lines, with rows that were there before: each row is handled once, in the files' order."""
    url = f"sqlite:{tmp_path / 'log.db'}"
    sources = [
        write_parquet(tmp_path / "a.parquet", rows(5000)),
        write_csv(tmp_path / "b.csv", rows(3000, 4000)),
        write_lines(tmp_path / "c.jsonl", rows(1000, 7000)),
    ]
    added = [run(spark, url, source, tmp_path / "plans") for source in sources]
    there = ends(url)
    again = run(spark, url, sources[0], tmp_path / "plans")

    assert [(each.appended, each.known, each.bad) for each in added] == [(5000, 0, 0), (2000, 1000, 0), (1000, 0, 0)]
    assert (again.appended, again.known) == (0, 5000)
    assert entries(url) == expected(range(8000))
    assert ends(url) == there
    assert sum(there) <= 8 + 2 * PARTITIONS  # records of up to a thousand commands


def test_a_plan_is_in_its_order_also_when_spark_has_to_spill(spark: Spark, tmp_path: Path):
    """Found by `make pipeline`: of five million commands, those of three partitions were interleaved, and counted as
    handled before."""
    plan = Plan(tmp_path / "plan")
    made = [(partition, first, 1, b"%d" % first, []) for partition in range(3) for first in range(2500)]
    plan.write(spark.session.createDataFrame(made, PACKED).coalesce(1))

    assert plan.counts() == dict.fromkeys(range(3), 2500)
    for partition in range(3):
        assert [record.first for record in plan.records(partition)] == list(range(2500))


def test_a_plan_that_is_not_in_its_order_is_not_appended(tmp_path: Path):
    """Nor is one that is not whole: nothing of that partition, and the sentence says where."""
    plan = Plan(tmp_path / "plan")
    made = [(0, first, 1, b"", []) for first in (0, 2, 1, 3)]
    path = plan.data / "partition=0" / "part-0.parquet"
    path.parent.mkdir(parents=True)
    names = ("partition", "first", "count", "payload", "ids")
    parquet.write_table(pa.Table.from_pylist([dict(zip(names[1:], row[1:], strict=True)) for row in made]), path)

    with pytest.raises(Corrupt, match=r"part-0.parquet is not in its order: at command 1 it has 2\."):
        plan.counts()


def test_a_table_of_the_catalogue_is_added_like_a_file(spark: Spark, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    """One that is made of files, and a view of rows that are in none, in the order of a column; one that is not there
    is told in a sentence, and nothing is planned."""
    url, plans = f"sqlite:{tmp_path / 'log.db'}", tmp_path / "plans"
    files, view = (spark.session.createDataFrame(some) for some in (rows(2000), rows(1000, 1500)[::-1]))
    files.coalesce(1).write.option("path", str(tmp_path / "history")).saveAsTable("history")
    view.createOrReplaceTempView("later")
    added = [run(spark, url, "table:history", plans), run(spark, url, "table:later", plans, order="number")]

    assert [(each.appended, each.known) for each in added] == [(2000, 0), (500, 500)]
    assert entries(url) == expected(range(2500))
    with pytest.raises(Misuse, match=r"table:nothing cannot be read: .* The table or view `nothing` cannot"):
        run(spark, url, "table:nothing", plans)
    assert "Exception" not in capfd.readouterr().err
    assert len(Plan.sealed_in(plans)) == 2


@pytest.mark.kafka
def test_a_topic_of_kafka_is_filled_like_a_file(spark: Spark, kafka: Brokers, tmp_path: Path):
    """The same rows, the same ledgers, and nothing twice; ordered by a column, not by the file."""
    url = kafka.url("backfilled")
    source = write_parquet(tmp_path / "a.parquet", rows(3000)[::-1])
    first = run(spark, url, source, tmp_path / "plans", order="number")
    again = run(spark, url, source, tmp_path / "plans", order="number")

    assert (first.appended, again.appended, again.known) == (3000, 0, 3000)
    # The column that orders is a field of the command all the same.
    assert entries(url) == expected(range(3000))


def test_bad_rows_go_to_a_file_with_the_reason_and_can_be_added_once_they_are_right(spark: Spark, tmp_path: Path):
    """An unknown command, a wrong field, no key, no id: the others are added, and so are these when they are mended."""
    url = f"sqlite:{tmp_path / 'log.db'}"
    good = rows(10)
    bad = [
        {**good[0], "id": "w1", "command": "subtract"},
        {**good[0], "id": "w2", "number": None},
        {**good[0], "id": "w3", "key": None},
        {**good[0], "id": None},
        {**good[0], "id": "row-3"},  # twice: the first counts
    ]
    added = run(spark, url, write_parquet(tmp_path / "a.parquet", good + bad), tmp_path / "plans")
    told = [json.loads(line) for line in added.bad_rows.read_text().splitlines()]
    mended = [{**good[0], "id": "w1", "number": 10}]
    later = run(spark, url, write_parquet(tmp_path / "b.parquet", mended), tmp_path / "plans")

    assert (added.appended, added.bad, added.known, later.appended) == (10, 4, 1, 1)
    reasons = {each["id"]: each["reason"] for each in told}
    assert reasons["w1"].startswith("App ledger has no command named 'subtract' (it has: add)")
    assert "number: Field required" in reasons["w2"]
    assert reasons["w3"] == "The key is empty: name the entity that the command is for."
    assert reasons[None] == "It has no id: without one it could be added twice"
    assert entries(url)["key0"] == [0, 7, 10]


def test_a_run_that_is_killed_is_ended_by_the_next(spark: Spark, tmp_path: Path):
    """SIGKILL of the driver when its plan is sealed, then of a task of the next run: every command is there once."""
    url, plans = f"sqlite:{tmp_path / 'log.db'}", tmp_path / "plans"
    source = write_parquet(tmp_path / "a.parquet", rows(20_000))
    command = [
        sys.executable,
        "-m",
        "engram.cli.main",
        "backfill",
        "tests.spark.ledger:app",
        *QUICK_OPTIONS,
        "--log",
        url,
    ]
    options = ["--from", source, "--plans", str(plans), "--partitions", str(PARTITIONS), "--master", "local[2]"]
    killed = subprocess.Popen([*command, *options], cwd=ROOT, stderr=subprocess.PIPE)
    assert eventually(lambda: bool(Plan.sealed_in(plans)) or killed.poll() is not None, START_S)
    killed.send_signal(signal.SIGKILL)
    _, said = killed.communicate()
    assert killed.returncode == -signal.SIGKILL, said
    job = Backfill(app="tests.spark.ledger:app", log=url, source=source, plans=plans)
    with closing(open_log(url, app.name)) as log:
        finish_plans(spark, job, app, log, on_progress=KillOnce(spark))
    again = run(spark, url, source, plans)

    assert (again.appended, again.known) == (0, 20_000)
    assert entries(url) == expected(range(20_000))


def test_the_plans_of_another_log_are_refused(spark: Spark, tmp_path: Path):
    """A log that was made anew has not got what was added to the old one: its rows must not be left out as known."""
    source = write_parquet(tmp_path / "a.parquet", rows(10))
    run(spark, f"sqlite:{tmp_path / 'log.db'}", source, tmp_path / "plans")

    with pytest.raises(Misuse, match=r"the log was made anew, or is an older copy\. Use another --plans folder"):
        run(spark, f"sqlite:{tmp_path / 'new.db'}", source, tmp_path / "plans")
    assert run(spark, f"sqlite:{tmp_path / 'new.db'}", source, tmp_path / "others").appended == 10


def test_what_is_no_table_of_commands_is_refused(spark: Spark, tmp_path: Path):
    """A source without the columns, one that is not there, and a log of another number of partitions."""
    url = f"sqlite:{tmp_path / 'log.db'}"
    nameless = write_parquet(tmp_path / "a.parquet", [{"number": 1}])
    with pytest.raises(Misuse, match=r"has no column id or command or key: each row needs all three\. It has: number"):
        run(spark, url, nameless, tmp_path / "plans")
    with pytest.raises(Misuse, match="has no column 'when' to order by"):
        run(spark, url, write_parquet(tmp_path / "b.parquet", rows(1)), tmp_path / "plans", order="when")
    (tmp_path / "folder").mkdir()
    with pytest.raises(Misuse, match=r"holds no \.parquet, \.csv or \.jsonl: say what it is with --format"):
        run(spark, url, str(tmp_path / "folder"), tmp_path / "plans")
    assert sum(ends(url)) == 0
    assert Plan.sealed_in(tmp_path / "plans") == []


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2500)), max_size=6))
def test_packing_loses_and_reorders_nothing(stretches: list[tuple[int, int]]):
    """Whatever the rows of a task, sorted by partition: each is in one record, in its place."""
    places = sorted(partition for partition, count in stretches for _ in range(count))
    names = ["partition", "id", "name", "version", "key", "body"]
    table = pa.Table.from_pylist(
        [
            dict(zip(names, (partition, str(n), "add", "1", f"key{n}", b'{"number":1}'), strict=True))
            for n, partition in enumerate(places)
        ],
        pa.schema([(n, {"partition": pa.int32(), "body": pa.binary()}.get(n, pa.string())) for n in names]),
    )
    packed = [row for batch in Pack(session="s")(table.to_batches(max_chunksize=700)) for row in batch.to_pylist()]

    assert [id_ for row in packed for id_ in row["ids"]] == [str(n) for n in range(len(places))]
    for partition in range(3):
        of_partition = [row for row in packed if row["partition"] == partition]
        counts = [row["count"] for row in of_partition]
        assert [row["first"] for row in of_partition] == [sum(counts[:i]) for i in range(len(counts))]
        assert all(0 < count <= 1000 for count in counts)
        assert sum(counts) == places.count(partition)


def test_what_could_not_be_read_back_is_a_bad_row():
    """As at the gateway: in the log, its record would stop the partition."""
    checker = RowChecker(Codec(counters), PARTITIONS)

    assert checker.check("1", "mark", "m", '{"text":"1234"}').body == b'{"text":"1234!"}'
    refused = checker.check("2", "mark", "m", '{"text":"12345"}')
    assert (refused.partition, refused.body) == (BAD, b"")
    assert "too long" in refused.problem


@given(st.one_of(st.none(), st.text(max_size=20)), st.one_of(st.none(), st.text(max_size=20)), st.text(max_size=30))
def test_any_row_is_a_command_or_has_a_reason(id_: str | None, key: str | None, body: str):
    """Whatever a row holds, checking it never fails."""
    checked = RowChecker(Codec(app), PARTITIONS).check(id_, "add", key, body)

    assert (checked.partition == BAD) == bool(checked.problem)
