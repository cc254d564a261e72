"""A process whose state is larger than the memory that it may have. It tells what it did as a line of JSON.

python -m tests.shard.larger FOLDER LIMIT_MB fill|change|more|look
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engram import App, Command, Context, Entity

LETTERS = 24_000
COUNT = 20_000
# One in so many: what changes first is written as a change, and then there is so much that all of it is merged.
CHANGED = {"change": 4, "more": 1}


@dataclass(slots=True, kw_only=True)
class Letter(Entity, name="letter"):
    text: str = ""
    read: int = 0


class Write(Command[Letter, None], name="write"):
    seed: int

    def handle(self, letter: Letter, ctx: Context) -> None:
        # Small in the log, large in the state, and nothing that compresses away.
        letter.text = random.Random(self.seed).randbytes(LETTERS // 2).hex()


class Read(Command[Letter, None], name="read"):
    def handle(self, letter: Letter, ctx: Context) -> None:
        letter.read += 1


app = App("larger", commands=[Write, Read])


def commands(what: str) -> Iterator[tuple[str, Command[Letter, None]]]:
    if what == "fill":
        yield from ((f"letter {number}", Write(seed=number)) for number in range(COUNT))
    elif what in CHANGED:
        yield from ((f"letter {number}", Read()) for number in range(0, COUNT, CHANGED[what]))


def _peak_mb() -> int:
    """Of this process: `ru_maxrss` would be that of whoever started it, if that was larger."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) >> 10 for line in status if line.startswith("VmHWM:"))


def main(folder: Path, limit_mb: int, what: str) -> None:
    # The heap and all private memory, by the kernel: beyond it there is a MemoryError, or none of us any more.
    resource.setrlimit(resource.RLIMIT_DATA, (limit_mb * 2**20, limit_mb * 2**20))

    from engram.codec.record import Envelope, Kind, encode_commands
    from engram.log.base import Entry
    from engram.log.sqlite import SqliteLog
    from engram.shard.policy import Policy
    from engram.shard.requests import Incoming, Stop
    from engram.shard.shard import Shard
    from engram.shard.spill import Spill
    from engram.snapshots.files import FileSnapshots

    from tests.shard.network import MemoryTransport

    store = FileSnapshots(folder / "snapshots", app.name)
    log = SqliteLog(folder / "log.db", app.name, partitions=1, create=what == "fill")
    transport = MemoryTransport("memory:larger")
    shard = Shard(
        app,
        number=0,
        partitions=[0],
        log=log,
        store=store,
        transport=transport,
        clock=lambda: 1_700_000_000_000,
        owner=what,
        policy=Policy(hot_entities=100, stop_within=600.0),
        cold=lambda: Spill(folder),
    )
    assert shard.recover()
    image = shard.owned[0].image
    told = {"loaded": image.digest(), "entities": image.count()}
    sent = list(commands(what))
    for start in range(0, len(sent), 50):
        some = enumerate(sent[start : start + 50], start)
        envelopes = [
            Envelope(c.__engram__.name or "", 1, key, c.model_dump_json().encode(), what, n) for n, (key, c) in some
        ]
        log.append([Entry(0, Kind.COMMANDS, 1_700_000_000_000, encode_commands(envelopes, "writer"))])
        while image.offset < log.end(0):
            shard.step(wait=False)
    told["left"] = image.digest() if sent else told["loaded"]
    transport.requests.append(Incoming(b"", Stop(clean=True, savepoint="kept" if what == "look" else "")))
    assert not shard.step(wait=False)
    shard.close()
    newest = store.manifests(0)[0]
    told["published"] = newest.digest
    told["steps"] = len(newest.steps)
    told["peak_mb"] = _peak_mb()
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
