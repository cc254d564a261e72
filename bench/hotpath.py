"""How fast does a shard handle commands, against the same work in a bare Python loop?

One million tweets; impressions and clicks as JSON; two counters and the last five urls as state. Engram: a real
shard over a real SQLite log, with everything on: decode, dedupe, undo, replies, epochs. The bare loop: msgspec
decodes one JSON text after the other from memory, and changes slotted objects in a dict. What a snapshot of all
million tweets costs while it is taken and written has a row of its own.
"""

from __future__ import annotations

import gc
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from engram import App, Command, Context, Entity
from engram.clock import system_clock
from engram.codec.record import Envelope, Kind, encode_commands
from engram.log.base import Entry
from engram.log.sqlite import SqliteLog
from engram.shard.garbage import collect_rarely
from engram.shard.owned import Owned
from engram.shard.policy import Policy
from engram.shard.shard import Shard
from engram.snapshots.files import FileSnapshots
from engram.testing.silence import Silence

from bench.result import Aim, Result, Row

TWEETS = 1_000_000
MEASURED = 200_000
REPETITIONS = 7
BATCH = 1000
SESSIONS = 64


@dataclass(slots=True, kw_only=True)
class Tweet(Entity, name="tweet"):
    impressions: int = 0
    clicks: int = 0
    urls: list[str] = field(default_factory=list)


class Impression(Command[Tweet, None], name="impression"):
    user: str

    def handle(self, tweet: Tweet, ctx: Context) -> None:
        tweet.impressions += 1


class Click(Command[Tweet, None], name="click"):
    user: str
    url: str

    def handle(self, tweet: Tweet, ctx: Context) -> None:
        tweet.clicks += 1
        tweet.urls.append(self.url)
        if len(tweet.urls) > 5:
            del tweet.urls[0]


app = App("impressions", commands=[Impression, Click])


class BareImpression(msgspec.Struct, tag="impression", tag_field="name"):
    key: str
    user: str


class BareClick(msgspec.Struct, tag="click", tag_field="name"):
    key: str
    user: str
    url: str


@dataclass(slots=True)
class BareTweet:
    impressions: int = 0
    clicks: int = 0
    urls: list[str] = field(default_factory=list)


def measure() -> Result:
    rng = random.Random(1)
    warm_up = [("impression", f"t{n}", {"user": "u0"}) for n in range(TWEETS)]
    rounds = [list(traffic(rng, MEASURED)) for _ in range(REPETITIONS)]
    with tempfile.TemporaryDirectory(prefix="engram-bench-") as folder:
        batched = Engram(Path(folder) / "batched.db", batch=BATCH)
        single = Engram(Path(folder) / "single.db", batch=1)
        bare = _Bare()
        for contender in (batched, single, bare):
            contender.prepare(warm_up)
        gc.freeze()
        rates: dict[str, list[float]] = {"bare": [], "batched": [], "single": [], "snapshot": []}
        for commands in rounds:
            rates["bare"].append(bare.rate(commands))
            rates["batched"].append(batched.rate(commands))
            rates["single"].append(single.rate(commands[: MEASURED // 5]))
        for commands in rounds[:3]:
            rates["snapshot"].append(batched.rate(commands, snapshot=True))
        batched.close()
        single.close()
    rows = [
        Row.of("bare loop: msgspec, slotted objects", rates["bare"], "commands/s"),
        Row.of(f"engram shard, {BATCH} commands a record", rates["batched"], "commands/s"),
        Row.of("engram shard, one command a record", rates["single"], "commands/s"),
        Row.of("engram shard, batches, during a snapshot", rates["snapshot"], "commands/s"),
    ]
    # Round by round: what else the machine does changes from one round to the next, less within one.
    ratio = round(statistics.median(e / b for e, b in zip(rates["batched"], rates["bare"], strict=True)), 3)
    result = Result(f"Hot path: {TWEETS:,} tweets, {REPETITIONS} x {MEASURED:,} commands", rows)
    result.aims.append(Aim("shard over bare loop, batch records", ">= 0.3", ratio, ratio >= 0.3))
    return result


def traffic(rng: random.Random, count: int, clicks: float = 0.3) -> Iterator[tuple[str, str, dict[str, str]]]:
    for _ in range(count):
        key, user = f"t{rng.randrange(TWEETS)}", f"u{rng.randrange(10_000)}"
        if rng.random() < clicks:
            yield "click", key, {"user": user, "url": f"https://example.org/{rng.randrange(1000)}"}
        else:
            yield "impression", key, {"user": user}


class Engram:
    """A shard that owns one partition of a SQLite log."""

    def __init__(self, path: Path, *, batch: int) -> None:
        self._log = SqliteLog(path, app.name, partitions=1, create=True)
        self._batch = batch
        self._sequence = 0
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

    def prepare(self, commands: list[tuple[str, str, dict[str, str]]]) -> None:
        self._append(commands, BATCH)
        self.shard.recover()
        collect_rarely()
        self._drain()

    def rate(self, commands: list[tuple[str, str, dict[str, str]]], *, snapshot: bool = False) -> float:
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

    def _append(self, commands: list[tuple[str, str, dict[str, str]]], batch: int) -> None:
        entries = []
        for start in range(0, len(commands), batch):
            envelopes = []
            for name, key, body in commands[start : start + batch]:
                self._sequence += 1
                session = f"s{self._sequence % SESSIONS}"
                envelopes.append(Envelope(name, 1, key, json.dumps(body).encode(), session, self._sequence))
            entries.append(Entry(0, Kind.COMMANDS, system_clock(), encode_commands(envelopes, "bench")))
        self._log.append(entries)

    def _drain(self) -> None:
        end = self._log.end(0)
        while self.shard.owned[0].image.offset < end:
            self.shard.step(wait=False)


class _Bare:
    """The loop that one would write without a framework, and without any guarantee."""

    def __init__(self) -> None:
        self._tweets: dict[str, BareTweet] = {}
        self._decode = msgspec.json.Decoder(BareImpression | BareClick).decode

    def prepare(self, commands: list[tuple[str, str, dict[str, str]]]) -> None:
        self._handle(self._encode(commands))

    def rate(self, commands: list[tuple[str, str, dict[str, str]]]) -> float:
        texts = self._encode(commands)
        started = time.perf_counter()
        self._handle(texts)
        return len(commands) / (time.perf_counter() - started)

    def _encode(self, commands: list[tuple[str, str, dict[str, str]]]) -> list[bytes]:
        return [json.dumps({"name": name, "key": key, **body}).encode() for name, key, body in commands]

    def _handle(self, texts: list[bytes]) -> None:
        tweets, decode = self._tweets, self._decode
        command: Any
        for text in texts:
            command = decode(text)
            tweet = tweets.get(command.key)
            if tweet is None:
                tweet = tweets[command.key] = BareTweet()
            if type(command) is BareImpression:
                tweet.impressions += 1
            else:
                tweet.clicks += 1
                tweet.urls.append(command.url)
                if len(tweet.urls) > 5:
                    del tweet.urls[0]
