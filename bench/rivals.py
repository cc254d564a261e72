"""What one would use instead: Redis as the place of state, in three ways, and the `eventsourcing` library.

Each handles the same JSON texts and keeps the same state. A rival's `handle` returns when all of it is where it keeps
its state.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import redis
from eventsourcing.application import AggregateNotFoundError, Application
from eventsourcing.domain import Aggregate, event

from bench.workload import BareClick, BareTweet, decode_bare

PIPELINE = 500
WRITE_BACK_S = 1.0

Handle = Callable[[Sequence[bytes]], None]


def write_through(client: redis.Redis) -> Handle:
    """Every change goes to Redis, in pipelines, by redis-py."""

    def handle(texts: Sequence[bytes]) -> None:
        for start in range(0, len(texts), PIPELINE):
            pipeline = client.pipeline(transaction=False)
            for text in texts[start : start + PIPELINE]:
                for words in _changes(decode_bare(text)):
                    pipeline.execute_command(*words)
            pipeline.execute()

    return handle


def write_through_packed(client: redis.Redis) -> Handle:
    """The same with a client that packs the words itself, and only counts the answers."""
    where = client.connection_pool.connection_kwargs
    line = socket.create_connection((where["host"], where["port"]))

    def handle(texts: Sequence[bytes]) -> None:
        for start in range(0, len(texts), PIPELINE):
            changes = [words for text in texts[start : start + PIPELINE] for words in _changes(decode_bare(text))]
            line.sendall(b"".join(map(_packed, changes)))
            waiting = len(changes)  # each answer is one line: a number, or OK
            while waiting:
                waiting -= line.recv(1 << 16).count(b"\n")

    return handle


def write_back(client: redis.Redis) -> Handle:
    """State is here; what has changed goes to Redis every second, and at the end."""
    tweets: dict[str, BareTweet] = {}

    def handle(texts: Sequence[bytes]) -> None:
        changed: set[str] = set()
        due = time.monotonic() + WRITE_BACK_S
        for number, text in enumerate(texts):
            command: Any = decode_bare(text)
            tweet = tweets.setdefault(command.key, BareTweet())
            if type(command) is BareClick:
                tweet.clicks += 1
                tweet.urls = [*tweet.urls[-4:], command.url]
            else:
                tweet.impressions += 1
            changed.add(command.key)
            if number % PIPELINE == 0 and time.monotonic() > due:
                _flush(client, tweets, changed)
                due = time.monotonic() + WRITE_BACK_S
        _flush(client, tweets, changed)

    return handle


def _flush(client: redis.Redis, tweets: dict[str, BareTweet], changed: set[str]) -> None:
    keys = list(changed)
    for start in range(0, len(keys), PIPELINE):
        pipeline = client.pipeline(transaction=False)
        for key in keys[start : start + PIPELINE]:
            tweet = tweets[key]
            state = {"impressions": tweet.impressions, "clicks": tweet.clicks, "urls": " ".join(tweet.urls)}
            pipeline.hset(key, mapping=state)
        pipeline.execute()
    changed.clear()


def _changes(command: Any) -> list[tuple[str, ...]]:
    if type(command) is not BareClick:
        return [("HINCRBY", command.key, "impressions", "1")]
    urls = f"{command.key}:urls"
    return [("HINCRBY", command.key, "clicks", "1"), ("RPUSH", urls, command.url), ("LTRIM", urls, "-5", "-1")]


def _packed(words: tuple[str, ...]) -> bytes:
    return "".join([f"*{len(words)}\r\n", *(f"${len(word)}\r\n{word}\r\n" for word in words)]).encode()


class _Tweet(Aggregate):
    @event("Made")
    def __init__(self, key: str) -> None:
        self.key = key
        self.impressions = 0
        self.clicks = 0
        self.urls: list[str] = []

    @staticmethod
    def create_id(key: str) -> Any:
        from uuid import NAMESPACE_URL, uuid5

        return uuid5(NAMESPACE_URL, key)

    @event("Impression")
    def see(self) -> None:
        self.impressions += 1

    @event("Click")
    def click(self, url: str) -> None:
        self.clicks += 1
        self.urls = [*self.urls[-4:], url]


def eventsourcing_library(environment: dict[str, str]) -> Handle:
    """Aggregates of the `eventsourcing` library, in the store that `environment` names."""
    application: Any = Application(env=environment)

    def handle(texts: Sequence[bytes]) -> None:
        for text in texts:
            command: Any = decode_bare(text)
            try:
                tweet = application.repository.get(_Tweet.create_id(command.key))
            except AggregateNotFoundError:
                tweet = _Tweet(command.key)
            if type(command) is BareClick:
                tweet.click(command.url)
            else:
                tweet.see()
            application.save(tweet)

    return handle
