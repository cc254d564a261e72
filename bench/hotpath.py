"""How fast does a shard handle commands, against the same work in a bare Python loop?

One million tweets; impressions and clicks as JSON; two counters and the last five urls as state. Engram: a real
shard over a real SQLite log, with everything on: decode, dedupe, undo, replies, epochs. The bare loop: msgspec
decodes one JSON text after the other from memory, and changes slotted objects in a dict. What a snapshot of all
million tweets costs while it is taken and written has a row of its own.
"""

from __future__ import annotations

import gc
import random
import statistics
import tempfile
import time
from pathlib import Path

from engram.clock import system_clock
from engram.log.sqlite import SqliteLog
from engram.shard.garbage import collect_rarely
from engram.shard.owned import Owned
from engram.shard.policy import Policy
from engram.shard.shard import Shard
from engram.snapshots.files import FileSnapshots
from engram.testing.silence import Silence
from engram.worker import take_short_turns

from bench.result import Aim, Result, Row
from bench.workload import BATCH, TWEETS, Bare, Sender, Sent, app, bare_texts, every_tweet, traffic

MEASURED = 200_000
REPETITIONS = 7


def measure() -> Result:
    rng = random.Random(1)
    warm_up = list(every_tweet(TWEETS))
    rounds = [list(traffic(rng, MEASURED)) for _ in range(REPETITIONS)]
    with tempfile.TemporaryDirectory(prefix="engram-bench-") as folder:
        batched = Engram(Path(folder) / "batched.db", batch=BATCH)
        single = Engram(Path(folder) / "single.db", batch=1)
        whole = Engram(Path(folder) / "whole.db", batch=BATCH, slim=False)
        bare = Bare()
        bare.handle(bare_texts(warm_up))
        for contender in (batched, single, whole):
            contender.prepare(warm_up)
        gc.freeze()
        rates: dict[str, list[float]] = {"bare": [], "batched": [], "whole": [], "single": [], "snapshot": []}
        for commands in rounds:
            rates["bare"].append(_bare_rate(bare, commands))
            rates["batched"].append(batched.rate(commands))
            rates["whole"].append(whole.rate(commands))
            rates["single"].append(single.rate(commands[: MEASURED // 5]))
        for commands in rounds[:3]:
            rates["snapshot"].append(batched.rate(commands, snapshot=True))
        batched.close()
        single.close()
        whole.close()
    rows = [
        Row.of("bare loop: msgspec, slotted objects", rates["bare"], "commands/s"),
        Row.of(f"engram shard, {BATCH} commands a record", rates["batched"], "commands/s"),
        Row.of("engram shard, the same without slim forms of commands", rates["whole"], "commands/s"),
        Row.of("engram shard, one command a record", rates["single"], "commands/s"),
        Row.of("engram shard, batches, during a snapshot", rates["snapshot"], "commands/s"),
    ]
    # Round by round: what else the machine does changes from one round to the next, less within one.
    ratio = round(statistics.median(e / b for e, b in zip(rates["batched"], rates["bare"], strict=True)), 3)
    result = Result(f"Hot path: {TWEETS:,} tweets, {REPETITIONS} x {MEASURED:,} commands", rows)
    result.aims.append(Aim("shard over bare loop, batch records", ">= 0.5", ratio, ratio >= 0.5))
    return result


def _bare_rate(bare: Bare, commands: list[Sent]) -> float:
    texts = bare_texts(commands)
    started = time.perf_counter()
    bare.handle(texts)
    return len(commands) / (time.perf_counter() - started)


class Engram:
    """A shard that owns one partition of a SQLite log."""

    def __init__(self, path: Path, *, batch: int, slim: bool = True) -> None:
        self._log = SqliteLog(path, app.name, partitions=1, create=True)
        self._batch = batch
        self._sender = Sender()
        store = FileSnapshots(path.with_suffix(".snapshots"), app.name)
        self.shard = Shard(
            app,
            number=0,
            partitions=[0],
            log=self._log,
            store=store,
            transport=Silence(),
            clock=system_clock,
            owner="bench",
            policy=Policy(snapshot_every=10**12),
        )
        self._slim = slim

    def prepare(self, commands: list[Sent]) -> None:
        self._append(commands, BATCH)
        self.shard.recover()
        if not self._slim:
            codec = self.owned.image.codec
            codec._slim_lines = codec._lines
        collect_rarely()
        take_short_turns()
        self._drain()

    def rate(self, commands: list[Sent], *, snapshot: bool = False) -> float:
        self._append(commands, self._batch)
        started = time.perf_counter()
        if snapshot:
            self.shard.begin_snapshot(0)
        self._drain()
        return len(commands) / (time.perf_counter() - started)

    @property
    def owned(self) -> Owned:
        return self.shard.owned[0]

    def close(self) -> None:
        self.shard.close()

    def _append(self, commands: list[Sent], batch: int) -> None:
        self._log.append(self._sender.entries(commands, batch))

    def _drain(self) -> None:
        end = self._log.end(0)
        while self.shard.owned[0].image.offset < end:
            self.shard.step(wait=False)
