"""How fast is a whole application? The social network, with its messages and events, and what its read models cost.

Users register, follow each other, and publish to the timelines of their followers. One real shard in this process over
a SQLite log handles it live, until nothing is left to do; beside it, in turns, the same app without read models. Where
the time goes is looked at in one more run, while posts are published and delivered, by the innermost file of Engram or
the app that the shard is in.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections import Counter
from pathlib import Path

from engram import App
from engram.clock import system_clock
from engram.log.base import Log
from engram.log.open import open_log
from engram.shard.garbage import collect_rarely
from engram.shard.policy import Policy
from engram.shard.shard import Shard
from engram.snapshots.memory import MemorySnapshots
from engram.testing.silence import Silence

from bench.result import Result, Row
from bench.sampler import Sampler
from bench.workload import Sender, Sent
from sample_apps.social import app
from sample_apps.social.pipeline import what_users_do
from sample_apps.social.user import nobody_was_notified, nobody_was_protected

USERS = 5_000
COMMANDS = 50_000
PARTITIONS = 4
BATCHES = (1, 50, 1000)
REPETITIONS = 3
_LOOKED_AT = 50  # commands a record where the time is looked at
_KINDS = {
    "handlers": ("social/commands.py", "social/rules.py", "social/tag.py", "social/user.py"),
    "what handlers send and emit": ("model/context.py", "codec/outgoing.py", "shard/outbox.py", "shard/flusher.py"),
    "rows of read models": ("social/read_models.py",),
    "comparing and indexing rows": (
        "image/read_models.py", "image/columns.py", "image/row_index.py", "image/ordered.py", "codec/rows.py",
    ),
    "text search": ("shard/search.py",),
    "undo": ("image/undo.py", "image/guard.py", "image/tracked.py", "image/lending.py"),
    "the log": ("engram/log/",),
    "decoding and encoding": ("engram/codec/",),
    "the rest of the image": ("engram/image/",),
    "the rest of the shard": ("engram/shard/",),
}  # fmt: skip

without = App(
    app.name,
    version=app.version,
    commands=list(app.commands.values()),
    queries=list(app.queries.values()),
    events=list(app.events.values()),
    upcasters=[nobody_was_notified, nobody_was_protected],
)


def measure() -> Result:
    commands = _commands()
    rates: dict[str, list[float]] = {}
    for _ in range(REPETITIONS):
        for batch in BATCHES:
            for what, of in (("", app), (", no read models", without)):
                rates.setdefault(f"{_a_record(batch)}{what}", []).append(_rate(of, commands, batch))
    sampler = Sampler(_KINDS)
    _rate(app, commands, _LOOKED_AT, sampler)
    shares = sampler.end()
    result = Result(
        f"Social network: {COMMANDS:,} commands of {USERS:,} users and what follows, live, one shard, SQLite"
    )
    result.rows += [Row.of(case, found, "commands/s") for case, found in rates.items()]
    for kind, share in shares.items():
        result.rows.append(Row.of(f"{_a_record(_LOOKED_AT)}, posts: {kind}", [100 * share], "% of its time"))
    return result


def _commands() -> list[Sent]:
    """First who they are and whom they follow, then what they publish: so posts are delivered."""
    rows = what_users_do(COMMANDS, USERS, random.Random(8), Counter())
    commands = [(name, key, json.loads(body)) for _, name, key, body in rows]
    return sorted(commands, key=lambda command: command[0] == "publish")


def _rate(of: App, commands: list[Sent], batch: int, looks: Sampler | None = None) -> float:
    """Commands and messages a second."""
    first_post = next(number for number, command in enumerate(commands) if command[0] == "publish")
    with tempfile.TemporaryDirectory(prefix="engram-bench-") as folder:
        url = f"sqlite:{Path(folder) / 'log.db'}"
        log = open_log(url, of.name, partitions=PARTITIONS, create=True)
        shard = _shard(of, open_log(url, of.name))
        sender = Sender(PARTITIONS)
        log.append(sender.entries(commands[:first_post], batch))
        seconds = _until_quiet(shard, log)
        log.append(sender.entries(commands[first_post:], batch))
        if looks is not None:
            looks.begin()
        seconds += _until_quiet(shard, log)
        handled = sum(owned.image.handled for owned in shard.owned.values())
        shard.close()
        log.close()
        return handled / seconds


def _shard(of: App, log: Log) -> Shard:
    shard = Shard(
        of,
        number=0,
        partitions=range(log.partitions),
        log=log,
        store=MemorySnapshots(of.name),
        transport=Silence(),
        clock=system_clock,
        owner="bench",
        policy=Policy(snapshot_every=10**12),
    )
    shard.recover()
    collect_rarely()
    return shard


def _until_quiet(shard: Shard, log: Log) -> float:
    """Seconds."""
    started = time.perf_counter()
    while shard.pending or any(log.end(p) > owned.image.offset for p, owned in shard.owned.items()):
        for _ in range(10):  # to ask where the log ends takes time too
            shard.step(wait=False)
    return time.perf_counter() - started


def _a_record(batch: int) -> str:
    return "one command a record" if batch == 1 else f"{batch:,} commands a record"
