"""How fast is a backfill? Against the log's own appends of the same records, in the same run.

Appending is what the log sees: sealed records, a Spark task for each partition. Before it, rows are checked and packed;
both together are the whole of it. The first run is not counted.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import pyarrow as pa
from engram.clock import system_clock
from engram.codec.record import Kind
from engram.dev.kafka import Brokers
from engram.log.base import Entry
from engram.log.open import open_log
from engram.spark.backfill import Backfill, append_plan, make_plan
from engram.spark.plan import Plan
from engram.spark.session import Spark
from pyarrow import parquet

from bench.hotpath import app, traffic
from bench.result import Aim, Result, Row

COMMANDS = 500_000
PARTITIONS = 4
REPETITIONS = 3
_TOGETHER = 32


def measure() -> Result:
    result = Result(f"Backfill: {COMMANDS:,} commands into {PARTITIONS} partitions, {REPETITIONS} repetitions")
    with tempfile.TemporaryDirectory(prefix="engram-bench-") as folder, Brokers() as brokers:
        source = _source(Path(folder))
        log_file = Path(folder, "spark.log")
        with Spark(name="bench", master="local[2]", slots=1, log_file=log_file) as spark:
            for name, url in (("sqlite", f"sqlite:{folder}/log"), ("kafka", brokers.url("bench"))):
                add_rows(result, spark, source, name=name, url=url, folder=Path(folder, name))
    return result


def add_rows(result: Result, spark: Spark, source: Path, *, name: str, url: str, folder: Path) -> None:
    """Measures one kind of log; each repetition has a log of its own."""
    # Without the first, in which everything is new to Java and to the tasks' processes.
    rates = [_rates(spark, source, f"{url}-{number}", folder / str(number)) for number in range(REPETITIONS + 1)][1:]
    own, appended, whole = zip(*rates, strict=True)
    result.rows += [
        Row.of(f"{name}: the log's own appends, {_TOGETHER} records of 1000 at once", own, "commands/s"),
        Row.of(f"{name}: backfill, appending", appended, "commands/s"),
        Row.of(f"{name}: backfill, checking, packing and appending", whole, "commands/s"),
    ]
    share = round(result.rows[-2].median / result.rows[-3].median, 2)
    result.aims.append(Aim(f"{name}: appending of a backfill over the log's own rate", ">= 0.5", share, share >= 0.5))


def _rates(spark: Spark, source: Path, url: str, plans: Path) -> tuple[float, float, float]:
    """Commands a second: of the log alone, of a backfill's appending, and of all of it."""
    job = Backfill(app="bench.hotpath:app", log=url, source=str(source), plans=plans)
    with closing(open_log(url, app.name, partitions=PARTITIONS, create=True)) as log:
        began = time.perf_counter()
        plan = make_plan(spark, job, app, log, on_progress=lambda _: None)
        planned = time.perf_counter()
        append_plan(spark, job, app, plan, on_progress=lambda _: None)
        ended = time.perf_counter()
    return _own_rate(f"{url}-own", plan), COMMANDS / (ended - planned), COMMANDS / (ended - began)


def _own_rate(url: str, plan: Plan) -> float:
    """One process, one partition after the other, the same records."""
    records = [[p.payload for p in plan.records(partition)] for partition in range(PARTITIONS)]
    with closing(open_log(url, app.name, partitions=PARTITIONS, create=True)) as log:
        began = time.perf_counter()
        for partition, payloads in enumerate(records):
            left = iter(payloads)
            while some := list(islice(left, _TOGETHER)):
                log.append([Entry(partition, Kind.COMMANDS, system_clock(), payload) for payload in some])
        return COMMANDS / (time.perf_counter() - began)


def _source(folder: Path) -> Path:
    path = folder / "source.parquet"
    columns = zip(*_rows(), strict=True)
    names = ("id", "command", "key", "body")
    parquet.write_table(pa.table(dict(zip(names, map(list, columns), strict=True))), path, row_group_size=50_000)
    return path


def _rows() -> Iterator[tuple[str, str, str, str]]:
    for number, (name, key, body) in enumerate(traffic(random.Random(5), COMMANDS)):
        yield str(number), name, key, json.dumps(body)
