"""The parts of `pipeline` about DataFrames and `engram rebuild`.

The traffic is the hot path's, in four partitions: a thousand commands a record, on the embedded log. Every reader
answers the same question: how many rows there are, and how long their texts. Rebuilding is the job itself, without the
start of Spark: on one core and on two, beside the same records handled in this process, with nothing around.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
from engram.clock import system_clock
from engram.codec.codec import Codec
from engram.codec.record import Envelope, Kind, encode_commands
from engram.image.image import Image
from engram.log.base import Entry
from engram.log.partitioner import partition_of
from engram.log.sqlite import SqliteLog
from engram.shard.garbage import collect_rarely
from engram.shard.past import dropped
from engram.shard.replay import replay_until
from engram.spark.batch import run_batch
from engram.spark.rebuild import RebuildJob, Stretch
from engram.spark.spark import Spark

from bench.result import Aim, Result, Row
from bench.workload import SESSIONS, app, traffic

APP = "bench.workload:app"
PARTITIONS = 4
COMMANDS = 1_000_000
ROUNDS = 3
LOG_QUESTION = "select count(*), sum(length(body)), sum(length(key)), max({offset}) from {rows}"
STATE_QUESTION = "select count(*), sum(length(state)), sum(length(key)) from {rows}"


def scans(result: Result) -> None:
    """The log and state as DataFrames, against Spark's own Parquet scan and DuckDB."""
    with _logged() as folder, _spark("local[2]") as spark:
        rebuilt, _ = _rebuilt(spark, folder)
        entities = sum(each.entities for each in rebuilt)
        job = _job(folder)
        for each in rebuilt:
            job.install(each, lambda _done, _of: None)
        session = spark.session

        def frame(form: str, name: str, **options: str) -> None:
            where = {"app": APP, "log": f"sqlite:{folder / 'log.db'}", "snapshots": str(folder / "snapshots")}
            session.read.format(form).options(**where, **options).load().createOrReplaceTempView(name)

        frame("engram.log", "log")
        frame("engram.state", "state", at="snapshot")
        frame("engram.state", "tweet", at="snapshot", entity="tweet")
        session.table("log").write.parquet(str(folder / "log.parquet"))
        parts = str(folder / "snapshots" / app.name / "partition-*" / "*" / "entities.parquet")
        session.read.parquet(str(folder / "log.parquet")).createOrReplaceTempView("log_parquet")
        session.read.parquet(parts).createOrReplaceTempView("state_parquet")

        def spark_sql(question: str, rows: str, offset: str = "offset") -> Callable[[], Any]:
            return lambda: session.sql(question.format(rows=rows, offset=offset)).collect()

        def duck(question: str, files: str) -> Callable[[], Any]:
            text = question.format(rows=f"read_parquet('{files}')", offset='"offset"')
            return lambda: duckdb.sql(text).fetchall()

        typed = "select count(*), sum(impressions), sum(clicks), sum(size(urls)) from {rows}"
        cases: list[tuple[str, int, Callable[[], Any]]] = [
            ("log as engram.log", COMMANDS, spark_sql(LOG_QUESTION, "log")),
            ("the same in Parquet, by Spark", COMMANDS, spark_sql(LOG_QUESTION, "log_parquet")),
            ("the same in Parquet, by DuckDB", COMMANDS, duck(LOG_QUESTION, f"{folder}/log.parquet/*.parquet")),
            ("state as engram.state, JSON text", entities, spark_sql(STATE_QUESTION, "state")),
            ("state as engram.state, typed columns", entities, spark_sql(typed, "tweet")),
            ("the snapshots' Parquet, by Spark", entities, spark_sql(STATE_QUESTION, "state_parquet")),
            ("the snapshots' Parquet, by DuckDB", entities, duck(STATE_QUESTION, parts)),
        ]
        for _, _, ask in cases:
            ask()  # what Spark compiles, and Python imports, once
        rates: dict[str, list[float]] = {name: [] for name, _, _ in cases}
        for number in range(ROUNDS):
            for name, rows, ask in cases:
                _progress(f"scan {number + 1} of {ROUNDS}: {name}")
                rates[name].append(rows / _seconds(ask))
    result.rows += [Row.of(f"scan, 2 cores: {name}", of, "rows/s") for name, of in rates.items()]


def rebuilds(result: Result) -> None:
    """`engram rebuild` on one and two cores, against the bare hot path."""
    bare, one, two = [], [], []
    with _logged() as folder:
        for rates, master in ((one, "local[1]"), (two, "local[2]")):
            with _spark(master) as spark:
                for number in range(ROUNDS):
                    _progress(f"rebuild {number + 1} of {ROUNDS} on {master}")
                    _job(folder).clear()
                    rates.append(COMMANDS / _rebuilt(spark, folder)[1])
        for number in range(ROUNDS):
            _progress(f"bare {number + 1} of {ROUNDS}")
            bare.append(COMMANDS / _seconds(lambda: _handle_all(folder)))
    result.rows += [
        Row.of("the records handled in one process, nothing kept", bare, "commands/s"),
        Row.of("rebuild on 1 core, snapshots included", one, "commands/s"),
        Row.of("rebuild on 2 cores, snapshots included", two, "commands/s"),
    ]
    ratio = round(statistics.median(two) / statistics.median(one), 2)
    result.aims.append(Aim("rebuild, two cores over one", ">= 1.8", ratio, ratio >= 1.8))


@contextmanager
def _logged() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="engram-bench-") as name:
        folder = Path(name)
        log = SqliteLog(folder / "log.db", app.name, partitions=PARTITIONS, create=True)
        waiting: dict[int, list[Envelope]] = {partition: [] for partition in range(PARTITIONS)}
        for number, (kind, key, body) in enumerate(traffic(random.Random(1), COMMANDS)):
            fields = ",".join(f'"{field}":"{value}"' for field, value in body.items())
            envelopes = waiting[partition_of(key, PARTITIONS)]
            envelopes.append(Envelope(kind, 1, key, f"{{{fields}}}".encode(), f"s{number % SESSIONS}", number))
            if len(envelopes) == 1000:
                _append(log, partition_of(key, PARTITIONS), envelopes)
        for partition, envelopes in waiting.items():
            _append(log, partition, envelopes)
        log.close()
        yield folder


def _append(log: SqliteLog, partition: int, envelopes: list[Envelope]) -> None:
    log.append([Entry(partition, Kind.COMMANDS, system_clock(), encode_commands(envelopes, "bench"))])
    envelopes.clear()


@contextmanager
def _spark(master: str) -> Iterator[Spark]:
    with tempfile.TemporaryDirectory(prefix="engram-bench-") as name:
        settings = {"spark.ui.enabled": "false", "spark.driver.memory": "1g"}
        with Spark(name="bench", master=master, slots=1, log_file=Path(name) / "log", settings=settings) as spark:
            run_batch(spark, range(PARTITIONS), _import)
            yield spark


def _import(_number: int, _tell: Any) -> None:
    """So that what is measured is not how long Python takes to start."""
    Codec(app)


def _job(folder: Path) -> RebuildJob:
    log, snapshots = f"sqlite:{folder / 'log.db'}", str(folder / "snapshots")
    return RebuildJob(reference=APP, log=log, snapshots=snapshots, every=10**9)


def _rebuilt(spark: Spark, folder: Path) -> tuple[list[Any], float]:
    """What `engram rebuild` does with Spark, and how long it took."""
    job, started = _job(folder), time.perf_counter()
    surveys = run_batch(spark, range(PARTITIONS), job.survey)
    stretches = [Stretch(found.partition, found.end, {}) for found in surveys]
    return run_batch(spark, stretches, job.rebuild), time.perf_counter() - started


def _handle_all(folder: Path) -> None:
    log, codec = SqliteLog(folder / "log.db", app.name), Codec(app)
    collect_rarely()
    for partition in range(PARTITIONS):
        image = Image(partition, codec)
        replay_until(image, log, log.end(partition), effects=dropped, progress=lambda: None)
    log.close()


def _seconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _progress(text: str) -> None:
    print(f"  {text} ...", file=sys.stderr)
