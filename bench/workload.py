"""What the benchmarks handle: impressions and clicks of tweets; two counters and the last five urls are the state.

`engram` handles it as an app; `Bare` is the loop that one would write without a framework, and without any guarantee.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from engram import App, Command, Context, Entity
from engram.clock import system_clock
from engram.codec.record import Envelope, Kind, encode_commands
from engram.log.base import Entry
from engram.log.partitioner import partition_of

TWEETS = 1_000_000
BATCH = 1000
SESSIONS = 64

Sent = tuple[str, str, dict[str, str]]  # a command's name, key and body


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


def every_tweet(tweets: int) -> Iterator[Sent]:
    """One impression of each: after it they are all there."""
    return (("impression", f"t{number}", {"user": "u0"}) for number in range(tweets))


def traffic(rng: random.Random, count: int, clicks: float = 0.3, *, tweets: int = TWEETS) -> Iterator[Sent]:
    for _ in range(count):
        key, user = f"t{rng.randrange(tweets)}", f"u{rng.randrange(10_000)}"
        if rng.random() < clicks:
            yield "click", key, {"user": user, "url": f"https://example.org/{rng.randrange(1000)}"}
        else:
            yield "impression", key, {"user": user}


class Sender:
    """Commands as records, as a gateway with many sessions would write them; their names begin with `name`."""

    def __init__(self, partitions: int = 1, *, name: str = "s") -> None:
        self._partitions = partitions
        self._name = name
        self._sequence = 0

    def entries(self, commands: Sequence[Sent], batch: int = BATCH) -> list[Entry]:
        envelopes: list[list[Envelope]] = [[] for _ in range(self._partitions)]
        for name, key, body in commands:
            self._sequence += 1
            session = f"{self._name}{self._sequence % SESSIONS}"
            partition = partition_of(key, self._partitions) if self._partitions > 1 else 0
            envelopes[partition].append(Envelope(name, 1, key, json.dumps(body).encode(), session, self._sequence))
        return [
            Entry(partition, Kind.COMMANDS, system_clock(), encode_commands(of_one[start : start + batch], "bench"))
            for partition, of_one in enumerate(envelopes)
            for start in range(0, len(of_one), batch)
        ]


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


decode_bare = msgspec.json.Decoder(BareImpression | BareClick).decode


def bare_texts(commands: Sequence[Sent]) -> list[bytes]:
    return [json.dumps({"name": name, "key": key, **body}).encode() for name, key, body in commands]


class Bare:
    """msgspec decodes one JSON text after the other from memory, and changes slotted objects in a dict."""

    def __init__(self) -> None:
        self.tweets: dict[str, BareTweet] = {}

    def handle(self, texts: Sequence[bytes]) -> None:
        tweets, decode = self.tweets, decode_bare
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
