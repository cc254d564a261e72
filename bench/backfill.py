"""How fast is a backfill? Against the log's own appends of the same records, in the same run.

Appending is what the log sees: sealed records, a Spark task for each partition, the start of the job included. It is
amortised as in a real one, which takes seconds: five million commands, as in `make pipeline`. Before it, rows are
checked and packed, once for all; both together are the whole of it. The first run of each kind of log is not counted.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
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
from engram.spark.spark import Spark
from pyarrow import parquet

from bench.result import Aim, Result, Row
from bench.workload import app, traffic

COMMANDS = 5_000_000
PARTITIONS = 4
REPETITIONS = 3
_TOGETHER = 32
_NAMES = ("id", "command", "key", "body")


def measure() -> Result:
    result = Result(f"Backfill: {COMMANDS:,} commands into {PARTITIONS} partitions, {REPETITIONS} repetitions")
    backfills(result)
    return result


def backfills(result: Result) -> None:
    """Adds rows and aims for both kinds of log."""
    with tempfile.TemporaryDirectory(prefix="engram-bench-") as name, Brokers() as brokers:
        folder = Path(name)
        job = Backfill(app="bench.workload:app", log="", source=str(_source(folder)), plans=folder / "plans")
        with Spark(name="bench", master="local[2]", slots=1, log_file=folder / "spark.log") as spark:
            plan, seconds = _planned(spark, replace(job, log=f"sqlite:{folder}/planned"))
            result.rows.append(Row.of("backfill: checking and packing, 2 cores", [COMMANDS / seconds], "commands/s"))
            for kind, url in (("sqlite", f"sqlite:{folder}/log"), ("kafka", brokers.url("bench"))):
                _add_rows(result, spark, job, plan, kind=kind, url=url)


def _planned(spark: Spark, job: Backfill) -> tuple[Plan, float]:
    with closing(open_log(job.log, app.name, partitions=PARTITIONS, create=True)) as log:
        began = time.perf_counter()
        plan = make_plan(spark, job, app, log, on_progress=lambda _: None)
        return plan, time.perf_counter() - began


def _add_rows(result: Result, spark: Spark, job: Backfill, plan: Plan, *, kind: str, url: str) -> None:
    """Each repetition has logs of its own, and begins with the log alone."""
    own, appended = [], []
    for number in range(REPETITIONS + 1):
        own.append(_own_rate(f"{url}-own-{number}", plan))
        appended.append(_appended_rate(spark, replace(job, log=f"{url}-{number}"), plan))
    result.rows += [
        # Without the first, in which everything is new to Java and to the tasks' processes.
        Row.of(f"{kind}: the log's own appends, {_TOGETHER} records of 1000 at once", own[1:], "commands/s"),
        Row.of(f"{kind}: backfill, appending, 2 cores", appended[1:], "commands/s"),
    ]
    share = round(result.rows[-1].median / result.rows[-2].median, 2)
    result.aims.append(Aim(f"{kind}: appending of a backfill over the log's own rate", ">= 0.5", share, share >= 0.5))


def _appended_rate(spark: Spark, job: Backfill, plan: Plan) -> float:
    open_log(job.log, app.name, partitions=PARTITIONS, create=True).close()
    began = time.perf_counter()
    append_plan(spark, job, app, plan, on_progress=lambda _: None)
    return COMMANDS / (time.perf_counter() - began)


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
    rows = _rows()
    with parquet.ParquetWriter(path, pa.schema([(name, pa.string()) for name in _NAMES])) as writer:
        while some := list(islice(rows, 50_000)):
            columns = dict(zip(_NAMES, map(list, zip(*some, strict=True)), strict=True))
            writer.write_table(pa.table(columns))
    return path


def _rows() -> Iterator[tuple[str, str, str, str]]:
    for number, (name, key, body) in enumerate(traffic(random.Random(5), COMMANDS)):
        yield str(number), name, key, json.dumps(body)
