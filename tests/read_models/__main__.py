"""`make models`: questions about the club in random histories, as many as one likes; ends at the first wrong answer."""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import structlog
from engram import Command

from tests.read_models.club import GAMES, KEYS, WORDS, Leave, Mark, Score, Show, Standing, Vain, Write
from tests.read_models.history import BOUNDS, MODELS, PARTITIONS, History

PLACES = {
    "marked": ["x", "y", "z", "everybody", "nobody"],
    "players": GAMES,
    "best": GAMES,
    "points": [*GAMES, "tenth", "none"],
    "bios": [*WORDS, "quick fox", "lazy dog", "none"],
}
# A history gets slower as it grows: all its records are handled anew by those who have no snapshot.
QUESTIONS_AT_ONCE = 500
TOLD_S = 5.0


def walk(seed: int, questions: int) -> Counter[str]:
    """A random history until so many questions are answered. Raises `AssertionError` for what is wrong."""
    random = Random(seed)
    history = History(random.randint(1, PARTITIONS), random.randint(1, 12))
    try:
        while history.done["queries"] + history.done["lookups"] < questions:
            act(history, random)
        history.come_to_rest()
    finally:
        history.close()
    return history.done


def act(history: History, random: Random) -> None:
    """Does one thing; questions, commands and turns more often than the rest."""
    number = random.randrange(PARTITIONS)
    things: list[tuple[int, Callable[[], None]]] = [
        (35, lambda: history.step(number, random.randint(1, 3))),
        (15, lambda: history.send([(random.choice(KEYS), command(random)) for _ in range(random.randint(1, 6))])),
        (20, lambda: ask(history, random)),
        (20, lambda: look(history, random)),
        (4, lambda: history.wait(random.randint(100, 1500))),
        (2, history.step_the_old),
        (1, lambda: history.snapshot(number)),
        (1, lambda: history.crash(number)),
        (1, lambda: history.take_over(number)),
        (1, lambda: history.restart(number + 1, random.randint(1, 12), clean=random.random() < 0.5)),
    ]
    weights, acts = zip(*things, strict=True)
    random.choices(acts, weights)[0]()


def ask(history: History, random: Random) -> None:
    query = random.choice([Show(), Standing(game=random.choice(GAMES))])
    for key in random.sample(KEYS, 3):
        history.ask(key, query, random.choice(BOUNDS), old=random.random() < 0.2)


def look(history: History, random: Random) -> None:
    model = random.choice(MODELS)
    for place in random.sample(PLACES[model], 2):
        history.look(model, place, random.randint(1, 3), random.choice(BOUNDS), old=random.random() < 0.2)


def command(random: Random) -> Command[Any, Any]:
    return random.choice(
        [
            Score(game=random.choice(GAMES), points=random.randint(-3, 3)),
            Mark(mark=random.choice("xyz")),
            Leave(game=random.choice(["", *GAMES])),
            Write(bio=" ".join(random.choices(WORDS, k=random.randint(0, 4)))),
            Vain(fails=random.random() < 0.5),
        ]
    )


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.read_models", description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="queries and lookups")
    parser.add_argument("--seed", type=int, default=0, help="of the first history; each has the next")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    done: Counter[str] = Counter()
    seed, started, told = options.seed, time.monotonic(), 0.0
    while (answered := done["queries"] + done["lookups"]) < options.count:
        if time.monotonic() - told > TOLD_S:
            told = time.monotonic()
            say(f"{answered:,} of {options.count:,}, {answered / (told - started):.0f}/s, seed {seed}, 0 wrong")
        try:
            done += walk(seed, QUESTIONS_AT_ONCE)
        except Exception:  # noqa: BLE001 - whatever it is, it is told with the seed
            say(f"{traceback.format_exc()}\nWRONG after {answered:,}. Again: make models COUNT=1 SEED={seed}")
            return 1
        seed += 1
    for what, count in sorted(done.items()):
        say(f"{count:12,} {what}")
    seconds, seeds = time.monotonic() - started, f"seeds {options.seed} to {seed - 1}"
    say(f"{answered:,} queries and lookups in {seconds:.0f} s, {seeds}: 0 wrong")
    return 0


if __name__ == "__main__":
    sys.exit(main())
