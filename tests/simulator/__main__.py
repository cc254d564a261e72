"""Very many seeds of the bank, with progress, and a closing table. What fails is made short and kept in tests/seeds."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

from engram.testing.simulator.many import Failure, simulate_many
from engram.testing.simulator.report import table

from tests.simulator.bank import subject

KEPT = Path(__file__).parents[1] / "seeds"
TOLD_S = 5.0


class Telling:
    """Progress, now and then."""

    def __init__(self) -> None:
        self._told = 0.0

    def __call__(self, text: str) -> None:
        if time.monotonic() - self._told > TOLD_S:
            self._told = time.monotonic()
            say(text)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def keep(failure: Failure) -> None:
    if failure.program:
        path = KEPT / f"seed_{failure.seed}.py"
        path.write_text(failure.program)
        say(f"{failure.told}\nKept as {path.relative_to(Path.cwd())}: python -m tests.seeds.{path.stem}\n")
    else:
        say(f"Seed {failure.seed}: {failure.told}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100_000)
    parser.add_argument("--start", type=int, default=0, help="the first one")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if options.seeds < 1 or options.processes < 1 or options.start < 0:
        parser.error("there must be at least one seed and one process, and no seed below 0")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has those behind an & ignore it
    counts, seconds = simulate_many(
        subject.reference,
        start=options.start,
        count=options.seeds,
        processes=options.processes,
        tell=Telling(),
        found=keep,
    )
    say(table(counts, seconds=seconds))
    return 1 if counts["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
