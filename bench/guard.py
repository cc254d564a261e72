"""What does it cost to watch handlers for what they touch?

The hot path of impressions and clicks (decode, dedupe, handle, undo) in three images of a hundred thousand tweets: not
watched, as every shard is by default; watched as `engram run --guard` does; and watched closely, as the test kit does.
Without a guard nothing is around a handler, so there is nothing to measure: the row is what the others are compared to.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

from engram.image.image import Image
from engram.shard.determinism.guard import DeterminismGuard
from engram.shard.garbage import collect_rarely

from bench.hotpath import app
from bench.result import Aim, Result, Row
from bench.undo import COMMANDS, HotPath

TWEETS = 100_000
ROUNDS = 21
CLICKS = 0.3


def measure() -> Result:
    ways = {
        "not watched": Image,
        "watched (engram run --guard)": _guarded(closely=False),
        "watched closely (test kit)": _guarded(closely=True),
    }
    paths = {name: HotPath(image, TWEETS) for name, image in ways.items()}
    collect_rarely()  # as every shard does
    costs: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(ROUNDS):
        for name, path in paths.items():
            costs[name].append(path.cost(number, CLICKS))
    title = f"Guard: {ROUNDS} x {COMMANDS:,} commands on {TWEETS:,} tweets, microseconds of processor time per command"
    result = Result(title, [Row.of(name, values, "us") for name, values in costs.items()])
    off, light, _ = costs.values()
    more = round(statistics.median(one / other for one, other in zip(light, off, strict=True)) - 1, 3)
    result.aims.append(Aim("what `engram run --guard` adds to the hot path", "<= 0.15", more, more <= 0.15))
    return result


def _guarded(*, closely: bool) -> Any:
    touches: list[Any] = []
    guard = DeterminismGuard(app, lambda *touch: touches.append(touch), closely=closely)
    return partial(Image, around=guard.around)
