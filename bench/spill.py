"""State larger than memory: what does it cost to keep a million entities on disk, and how do they come back?

Three processes restart from the same snapshot, verified by its digest, and are then given commands: one keeps all
entities as objects, one leaves them encoded in memory until they are touched, and one keeps 50,000 as objects and all
others on disk. Commands for all entities at random are the worst case: nearly every one brings an entity from the disk,
and takes another there.
"""

from __future__ import annotations

import importlib
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from engram.codec.codec import Codec
from engram.codec.record import Envelope, Kind, Record, encode_commands
from engram.image.home import Cold
from engram.image.image import Image
from engram.shard.garbage import collect_rarely
from engram.shard.spill import Spill
from engram.snapshots.base import Contents, Loaded
from engram.snapshots.files import FileSnapshots

from bench.result import Aim, Result, Row
from bench.workload import BATCH, TWEETS, app, traffic

HOT = 50_000
COMMANDS = 200_000
WAYS = {
    "objects": "all as objects",
    "encoded": "encoded until touched",
    "spilled": f"{HOT:,} as objects, others on disk",
}


def measure() -> Result:
    with tempfile.TemporaryDirectory(prefix="engram-bench-") as folder:
        _prepare(Path(folder))
        told = {way: _restarted(folder, way) for way in WAYS}
    result = Result(f"Spill: {TWEETS:,} tweets from a snapshot, then {COMMANDS:,} commands, one process each")
    for figure, unit in (
        ("restart", "entities/s"),
        ("memory of entities", "MB"),
        ("peak memory", "MB"),
        ("commands for few entities", "commands/s"),
        ("commands for all entities", "commands/s"),
    ):
        result.rows += [Row(f"{figure}: {text}", told[way][figure], unit, 0.0) for way, text in WAYS.items()]
    for figure, of in (("memory", "memory of entities"), ("peak memory from the start on", "peak memory")):
        share = round(told["spilled"][of] / told["objects"][of], 2)
        result.aims.append(Aim(f"{figure} with a spill, over that of objects", "<= 0.5", share, share <= 0.5))
    return result


def _prepare(folder: Path) -> None:
    image = Image(0, Codec(app))
    rng = random.Random(4)
    _handle(image, [("impression", f"t{n}", {"user": "u0"}) for n in range(TWEETS)])
    _handle(image, list(traffic(rng, 2 * TWEETS)))
    freeze = image.begin_freeze()
    while freeze.advance(10_000):
        pass
    FileSnapshots(folder, app.name).publish(0, Contents(freeze.columns, freeze.memory, image.count()), created=0)


def _restarted(folder: str, way: str) -> dict[str, float]:
    print(f"  {WAYS[way]} ...", file=sys.stderr)
    command = [sys.executable, "-m", "bench.spill", folder, way]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)  # type: ignore[no-any-return]


def _restart(folder: Path, way: str) -> dict[str, float]:
    """In a process of its own: its figures."""
    places: dict[str, Callable[[], Cold]] = {"spilled": partial(Spill, folder)}
    image = Image(0, Codec(app), cold=places.get(way, dict))
    importlib.import_module("pyarrow.parquet")  # what the libraries take is not of the entities
    before = _memory()
    started = time.perf_counter()
    # The store is kept, as a shard keeps it: it has what the next snapshot needs.
    store = FileSnapshots(folder, app.name)
    store.restore(0, partial(_load, image, way))
    seconds = time.perf_counter() - started
    collect_rarely()
    cool = partial(image.cool, HOT, 2 * BATCH) if way == "spilled" else lambda: None
    rng = random.Random(5)
    few = [(name, f"t{int(key[1:]) % HOT}", body) for name, key, body in traffic(rng, COMMANDS)]
    _handle(image, few, cool)
    return {
        "restart": round(TWEETS / seconds),
        "commands for few entities": _rate(image, few, cool),
        "commands for all entities": _rate(image, list(traffic(rng, COMMANDS)), cool),
        "memory of entities": round((_memory() - before) / 2**20),
        "peak memory": round(_peak() / 2**10 - before / 2**20),
    }


def _load(image: Image, way: str, loaded: Loaded) -> None:
    if way == "objects":
        image.load(loaded.contents.entities, loaded.memory)
    else:
        image.load_encoded(loaded.columns, loaded.memory)


def _rate(image: Image, commands: list[tuple[str, str, dict[str, str]]], cool: Callable[[], object]) -> float:
    started = time.perf_counter()
    _handle(image, commands, cool)
    return round(len(commands) / (time.perf_counter() - started))


_sessions = iter(range(10**9))


def _handle(
    image: Image, commands: list[tuple[str, str, dict[str, str]]], cool: Callable[[], object] = lambda: None
) -> None:
    for start in range(0, len(commands), BATCH):
        session = f"s{next(_sessions) % 64}"
        some = enumerate(commands[start : start + BATCH], image.offset * BATCH)
        envelopes = [Envelope(n, 1, key, json.dumps(body).encode(), session, i) for i, (n, key, body) in some]
        image.handle(Record(0, image.offset, Kind.COMMANDS, 0, encode_commands(envelopes, "bench")))
        cool()


def _memory() -> int:
    """What this process has of memory now, in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _peak() -> int:
    """The most that this process ever had, in kB. (Not `ru_maxrss`: a child inherits its parent's.)"""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


if __name__ == "__main__":
    print(json.dumps(_restart(Path(sys.argv[1]), sys.argv[2])))
