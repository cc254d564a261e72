"""What Spark itself offers for state in a stream: one micro-batch, and `transformWithStateInPandas`."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
from engram.spark.spark import Spark
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

_ROCKS_DB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_BATCHES = 20
_DEADLINE_S = 60.0
_STATE = "impressions long, clicks long, urls array<string>"


@contextmanager
def spark() -> Iterator[Any]:
    """A session on one core, as one shard has one, with the state store that `transformWithStateInPandas` asks for."""
    with tempfile.TemporaryDirectory(prefix="engram-bench-") as folder:
        settings = {
            "spark.sql.streaming.stateStore.providerClass": _ROCKS_DB,
            "spark.sql.shuffle.partitions": "1",
            "spark.sql.streaming.checkpointLocation": folder,
        }
        with Spark(
            name="bench", master="local[1]", slots=1, log_file=Path(folder) / "spark.log", settings=settings
        ) as running:
            for name, value in settings.items():
                running.session.conf.set(name, value)
            yield running.session


def micro_batches(session: Any) -> list[float]:
    """How long micro-batches of ten rows take that do nothing with them, in milliseconds; the first ones left out."""
    rows = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    query = rows.writeStream.format("noop").trigger(processingTime="0 seconds").start()
    try:
        deadline = time.monotonic() + _DEADLINE_S
        while len(query.recentProgress) < _BATCHES and time.monotonic() < deadline:
            time.sleep(0.05)
        return [progress["durationMs"]["triggerExecution"] for progress in query.recentProgress[5:]]
    finally:
        query.stop()


class _Tweets(StatefulProcessor):
    """Two counters and the last five urls, as everybody here keeps them."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("tweet", _STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803 - Spark's names
        impressions, clicks, urls = self._state.get() or (0, 0, [])
        for frame in rows:
            for text in frame["text"]:
                command = json.loads(text)
                if command["name"] == "click":
                    clicks += 1
                    urls = [*urls[-4:], command["url"]]
                else:
                    impressions += 1
        self._state.update((impressions, clicks, list(urls)))
        yield pd.DataFrame({"key": [key[0]]})

    def close(self) -> None:
        pass


def transform_with_state(session: Any, texts: Sequence[bytes]) -> float:
    """Commands a second through the operator, from a file of JSON in one micro-batch, without the query's start."""
    with tempfile.TemporaryDirectory(prefix="engram-bench-") as folder:
        lines = [json.dumps({"key": json.loads(text)["key"], "text": text.decode()}) for text in texts]
        (Path(folder) / "input.json").write_text("\n".join(lines))
        rows = session.readStream.schema("key string, text string").json(folder)
        kept = rows.groupBy("key").transformWithStateInPandas(
            statefulProcessor=_Tweets(), outputStructType="key string", outputMode="Update", timeMode="None"
        )
        query = kept.writeStream.format("noop").outputMode("update").trigger(availableNow=True).start()
        if not query.awaitTermination(_DEADLINE_S):
            query.stop()
            raise SystemExit(f"Spark did not handle {len(texts)} commands within {_DEADLINE_S:.0f} s.")
        progress = [each for each in query.recentProgress if each["numInputRows"]]
        return len(texts) / (sum(each["durationMs"]["addBatch"] for each in progress) / 1000)
