"""What do snapshots cost? One million small entities in one shard, under full load, and how they come back.

The load is that of `hotpath`, without a break. A **cycle** begins with a snapshot of everything that has changed since
the one before, which is most of the million, and lasts until the default policy would begin the next: the copy, the
work of the writer's thread and the pause are all in it. The ratio is a cycle's throughput over that of commands
without any snapshot right before it. Pauses are those of all snapshots with the load going on, cycles and some more.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from engram.clock import system_clock
from engram.codec.codec import Codec
from engram.image.image import Image
from engram.shard.garbage import collect_rarely
from engram.snapshots.files import FileSnapshots
from engram.snapshots.manifest import Manifest

from bench.hotpath import Engram
from bench.laps import Laps
from bench.result import Aim, Result, Row
from bench.workload import BATCH, TWEETS, Sender, app, traffic

LAP = 500_000
DIFFERENT_LAPS = 4
CYCLES = 3
LAPS_WITHOUT = 4
MORE = 17
LOADS = 5
FEW = (1_000, 10_000, 100_000)


def measure() -> Result:
    with tempfile.TemporaryDirectory(prefix="engram-bench-") as folder:
        path = Path(folder) / "log.db"
        shard = Engram(path, batch=BATCH)
        shard.prepare([("impression", f"t{n}", {"user": "u0"}) for n in range(TWEETS)])
        store = _store(path)
        first = _snapshot(shard, store)
        gc.freeze()
        load = _Load(shard)
        load.lap()  # what the first clicks allocate is not a snapshot's cost
        live = _peak()
        without, cycles, pauses, seconds = [], [], [], []
        for number in range(CYCLES):
            _progress(f"cycle {number + 1} of {CYCLES}")
            without.append(load.rate(lambda laps: laps == LAPS_WITHOUT))
            shard.shard.begin_snapshot(0)
            began = time.perf_counter()
            cycles.append(load.rate(partial(_is_over, shard)))
            seconds.append(time.perf_counter() - began)
            pauses.append(shard.owned.taking.pause * 1000)
        for number in range(MORE):
            _progress(f"snapshot {CYCLES + number + 1} of {CYCLES + MORE}")
            shard.shard.begin_snapshot(0)
            load.rate(lambda _: not _under_way(shard))
            pauses.append(shard.owned.taking.pause * 1000)
        peak = _peak()
        sizes = {}
        for count in FEW:
            manifest = first
            while len(manifest.steps) == 1:  # one that was merged with all before it says nothing of the change
                shard.rate(list(traffic(random.Random(count), count)))
                manifest = _snapshot(shard, store)
            sizes[manifest.changed] = sum(part.size for part in manifest.steps[-1])
        _progress("loading")
        chain, of_chain = manifest, _loads(path)
        while len(manifest.steps) > 1:
            shard.rate(list(traffic(random.Random(len(manifest.steps)), LAP)))
            manifest = _snapshot(shard, store)
        of_base = _loads(path)
        _progress("fork")
        forks = [_fork(shard, load) for _ in range(CYCLES)]
        shard.close()
    rows = sum(part.rows for step in chain.steps for part in step)
    result = Result(f"Snapshots: {TWEETS:,} tweets, {CYCLES} cycles of the default policy, {len(pauses)} snapshots")
    result.rows += [
        Row.of("commands without a snapshot", without, "commands/s"),
        Row.of("commands over a cycle", cycles, "commands/s"),
        Row.of("length of a cycle", seconds, "s"),
        Row.of(f"longest pause of a snapshot ({len(pauses)} of them)", pauses, "ms"),
        Row.of("loading and verifying the digest, entities left encoded", of_base, "entities/s"),
        Row.of(f"the same of a base and {len(chain.steps) - 1} changes, {rows:,} rows", of_chain, "entities/s"),
        Row("peak memory with snapshots, over that without", round(peak / live, 2), "times", 0.0),
        Row("bytes of a snapshot of everything", first.written_bytes, "bytes", 0.0),
        *(Row(f"bytes for {changed:,} changed entities", size, "bytes", 0.0) for changed, size in sizes.items()),
        Row.of("instead, by a fork: its pause", [pause for pause, _ in forks], "ms"),
        Row.of("instead, by a fork: commands while the child encodes", [rate for _, rate in forks], "commands/s"),
    ]
    ratio = round(statistics.median(on / off for on, off in zip(cycles, without, strict=True)), 3)
    longest = round(max(pauses), 1)
    loaded, of_both = round(statistics.median(of_base)), round(statistics.median(of_chain))
    per_entity = [size / changed for changed, size in sizes.items()]
    growth = round(max(per_entity[1:]) / min(per_entity[1:]), 2)
    result.aims += [
        Aim("throughput with snapshots by the default policy, over without", ">= 0.8", ratio, ratio >= 0.8),
        Aim(f"longest pause of {len(pauses)} snapshots, ms", "<= 20", longest, longest <= 20),
        Aim("entities loaded per second, from a base", ">= 500,000", loaded, loaded >= 500_000),
        Aim("entities loaded per second, from a base and changes", ">= 500,000", of_both, of_both >= 500_000),
        Aim("bytes per changed entity, from 10,000 to 100,000 of them", "<= 1.5 times apart", growth, growth <= 1.5),
    ]
    return result


class _Load:
    """Commands without end."""

    def __init__(self, shard: Engram) -> None:
        self._shard = shard
        rng, sender = random.Random(2), Sender()
        self._laps = Laps([sender.entries(list(traffic(rng, LAP))) for _ in range(DIFFERENT_LAPS)])

    def lap(self) -> float:
        """Seconds for one lap. What makes the records is not in them."""
        self._shard._log.append(self._laps.next())
        started = time.perf_counter()
        self._shard._drain()
        return time.perf_counter() - started

    def rate(self, over: Callable[[int], bool]) -> float:
        """Commands per second, by laps, until it is over."""
        taken: list[float] = []
        while not over(len(taken)):
            taken.append(self.lap())
        return LAP * len(taken) / sum(taken)


def _fork(shard: Engram, load: _Load) -> tuple[float, float]:
    """The other way: a forked process encodes everything. The pause in milliseconds, and commands/s meanwhile."""
    (home,) = shard.owned.image._homes.values()
    started = time.perf_counter()
    child = os.fork()
    if child == 0:
        for entity in home.entities.values():
            home.encode(entity)
        os._exit(0)
    pause = (time.perf_counter() - started) * 1000
    return pause, load.rate(lambda laps: laps > 0 and os.waitpid(child, os.WNOHANG)[0] == child)


def _is_over(shard: Engram, _laps: int) -> bool:
    """Whether the default policy would begin the next snapshot."""
    return not _under_way(shard) and shard.shard._snapshotting._toll.is_over(system_clock())


def _under_way(shard: Engram) -> bool:
    return shard.owned.image.freeze is not None or shard.owned.taking.writing


def _snapshot(shard: Engram, store: FileSnapshots) -> Manifest:
    shard.shard.begin_snapshot(0)
    while _under_way(shard):
        shard.shard.step(wait=False)
        time.sleep(0.001)
    return store.manifests(0)[0]


def _store(log: Path) -> FileSnapshots:
    return FileSnapshots(log.with_suffix(".snapshots"), app.name, keep=10**6)


def _loads(log: Path) -> list[float]:
    """Each in a process of its own, as a start is."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as processes:
        return list(processes.map(_load, [log] * LOADS))


def _load(log: Path) -> float:
    import pyarrow.parquet  # noqa: F401 - once in a process, however many entities it loads

    store = _store(log)
    image = Image(0, Codec(app))
    collect_rarely()
    started = time.perf_counter()
    store.restore(0, lambda loaded: image.load_encoded(loaded.columns, loaded.memory))
    return image.count() / (time.perf_counter() - started)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _progress(text: str) -> None:
    print(f"  {text} ...", file=sys.stderr)
