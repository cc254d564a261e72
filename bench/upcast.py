"""Upcast lazily or at load? Users of two versions ago, with named values in them, brought up when a partition starts,
or each when it is first touched; beside the same users in today's version.

The garbage collector is off: it would look at all users again and again, in whichever case comes after another.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from engram import App, Command, Context, Entity, Json, upcaster, value
from engram.codec.codec import Codec
from engram.image.contents import EntityColumns, Memory, rows_of
from engram.image.image import Image

from bench.result import Result, Row

USERS = 100_000
TOUCHED = 10_000
RUNS = 3


@value(name="post", version=2)
@dataclass(frozen=True, slots=True)
class Post:
    text: str
    milliseconds: int


@dataclass(slots=True, kw_only=True)
class User(Entity, name="user", version=3):
    first: str = ""
    last: str = ""
    posts: list[Post] = field(default_factory=list)


class Touch(Command[User, int], name="touch"):
    def handle(self, user: User, ctx: Context) -> int:
        return len(user.posts)


@upcaster(User, from_version=1)
def nick_became_name(old: Json) -> Json:
    return {**{k: v for k, v in old.items() if k != "nick"}, "name": old["nick"]}


@upcaster(User, from_version=2)
def name_was_split(old: Json) -> Json:
    first, _, last = old.pop("name").partition(" ")
    return {**old, "first": first, "last": last}


@upcaster(Post, from_version=1)
def seconds_became_milliseconds(old: Json) -> Json:
    return {"text": old["text"], "milliseconds": old["seconds"] * 1000}


app = App("bench", commands=[Touch], upcasters=[nick_became_name, name_was_split, seconds_became_milliseconds])
_KEYS = [f"user{number}" for number in range(USERS)]
_EMPTY = Memory(
    offset=0, epoch=-1, app_version=1, time=0, sessions=[], keys=[], origins=[], quarantine=[], quarantined=0
)


def measure() -> Result:
    gc.disable()
    codec = Codec(app)
    posts = [{"text": f"post {n}", "seconds": n} for n in range(5)]
    old = [json.dumps({"key": key, "nick": "Ada Lovelace", "posts": posts}).encode() for key in _KEYS]
    of_old = EntityColumns("user", 1, _KEYS, old)
    today = [codec.encode_entity(codec.decode_entity("user", 1, state)) for state in old]
    of_today = EntityColumns("user", codec.version_of(User), _KEYS, today)
    result = Result(f"Upcasting: {USERS:,} users with 5 posts each, two versions and a nested one behind")
    for name, columns in (("of two versions ago", of_old), ("of today's version", of_today)):
        result.rows += [
            Row.of(
                f"{name}: start, all brought up", [_rate(_eager, columns, USERS) for _ in range(RUNS)], "entities/s"
            ),
            Row.of(f"{name}: start, left encoded", [_rate(_lazy, columns, USERS) for _ in range(RUNS)], "entities/s"),
            Row.of(f"{name}: first touch of one", [_touch(columns) for _ in range(RUNS)], "us"),
            Row.of(f"{name}: a whole snapshot of them", [_freeze(columns) for _ in range(RUNS)], "entities/s"),
        ]
    return result


def _eager(columns: EntityColumns) -> Image:
    image = Image(0, Codec(app))
    image.load(rows_of([columns]), _EMPTY)
    return image


def _lazy(columns: EntityColumns) -> Image:
    image = Image(0, Codec(app))
    image.load_encoded([columns], _EMPTY)
    return image


def _rate(load: Callable[[EntityColumns], Image], columns: EntityColumns, count: int) -> float:
    started = time.perf_counter()
    load(columns)
    return count / (time.perf_counter() - started)


def _touch(columns: EntityColumns) -> float:
    image = _lazy(columns)
    started = time.perf_counter()
    for key in _KEYS[:TOUCHED]:
        image.find(User, key)
    return (time.perf_counter() - started) / TOUCHED * 1e6


def _freeze(columns: EntityColumns) -> float:
    image = _lazy(columns)
    started = time.perf_counter()
    freeze = image.begin_freeze()
    while freeze.advance(1000):
        pass
    return USERS / (time.perf_counter() - started)
