"""`make fuzz`: the damages of `mutations` for as long as one likes, with a count by kind."""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

import structlog

from tests.snapshots.mutations import MUTATIONS, Story

TOLD_S = 5.0


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with tempfile.TemporaryDirectory() as folder:
        story = Story(Path(folder))
        try:
            return fuzz(story, options.count, options.seed)
        finally:
            story.close()


def fuzz(story: Story, count: int, seed: int) -> int:
    """Every mutation has a seed of its own, which is told when it is not survived."""
    kinds = list(MUTATIONS)
    done: Counter[str] = Counter()
    detected: Counter[str] = Counter()
    failed = 0
    started = told = time.monotonic()
    for number in range(count):
        kind = kinds[number % len(kinds)]
        try:
            detected[kind] += story.damage(Random(f"{kind} {seed + number}"), kind).detected
            story.go_on()
        except AssertionError as problem:
            failed += 1
            say(f"NOT SURVIVED: {kind}, seed {seed + number}: {problem}")
        done[kind] += 1
        if time.monotonic() - told > TOLD_S:
            told = time.monotonic()
            say(f"{number + 1:,} of {count:,}, {(number + 1) / (told - started):.0f}/s, {failed} not survived")
    for kind in kinds:
        harmless = done[kind] - detected[kind]
        say(f"{kind:10} {done[kind]:7,} done {detected[kind]:7,} detected {harmless:7,} harmless")
    say(f"{count:,} in {time.monotonic() - started:.0f} s: {failed} not survived")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
