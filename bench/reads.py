"""What do read models cost the commands that they follow, and what does a look into one take?

Users who follow fifty others: a lookup of followers, a ranking, a tally and two more of them. Half of the commands
change rows (one follows, and the oldest goes), half can change none.

Two images handle the same records in turns, one with read models and one without. What they differ by is compared with
what `rows` of these models takes, run bare on the image without, right after each record and for the very entities
whose rows the other image has to bring up to date: so both find in the processor's caches what there is at that moment.
Before, it was compared with one run of `rows` for each command, though half of them need none, and for all users in
turn. Times are the thread's own, and the ratio is the median of those of the rounds. What asking costs from outside is
in `bench.questions`.
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import uvloop
from engram import App, Command
from engram.codec.codec import Codec
from engram.codec.record import Envelope, Kind, Record, encode_commands
from engram.image.image import Image
from engram.image.row_index import SortedRows
from engram.model.read_model import ReadModel
from engram.shard.garbage import collect_rarely
from engram.shard.search import FtsIndex

from bench.questions import measure_questions
from bench.result import Aim, Result, Row
from bench.users import FIVE, FOLLOWING, Follow, See, User

USERS = 2_000
COMMANDS = 20_000
BATCH = 500
REPETITIONS = 5
LOOKS = 20_000
PAGE = 20

Work = list[tuple[str, Command[User, None]]]


class Society:
    """Users in one image, with some of the read models."""

    def __init__(self, models: Sequence[type[ReadModel]]) -> None:
        app = App("reads", commands=[Follow, See], read_models=models)
        self.image = Image(0, Codec(app), new_text_index=FtsIndex)
        self._random = random.Random(7)
        self._sequence = itertools.count()
        for _ in range(FOLLOWING):
            for start in range(0, USERS, BATCH):
                self.image.handle(self._record([(f"u{n}", self._follow()) for n in range(start, start + BATCH)]))

    def handle(self, work: Work) -> float:
        """Seconds; the record is made before the watch runs."""
        record = self._record(work)
        started = time.thread_time()
        self.image.handle(record)
        return time.thread_time() - started

    def bare(self, readers: Sequence[ReadModel], keys: Iterable[str]) -> float:
        """Seconds that these rows of these users take."""
        users = [self.image.entities["user"][key] for key in keys]
        started = time.thread_time()
        for user in users:
            for reader in readers:
                list(reader.rows(user))
        return time.thread_time() - started

    def some_work(self) -> Work:
        return [
            (f"u{self._random.randrange(USERS)}", self._follow() if number % 2 else See()) for number in range(BATCH)
        ]

    def _follow(self) -> Follow:
        return Follow(whom=f"u{self._random.randrange(USERS)}")

    def _record(self, work: Work) -> Record:
        envelopes = [
            Envelope(c.__engram__.name or "", 1, key, c.model_dump_json().encode(), "s", next(self._sequence))
            for key, c in work
        ]
        return Record(0, self.image.offset, Kind.COMMANDS, 0, encode_commands(envelopes, "bench"))


class Costs(NamedTuple):
    """Microseconds a command: without read models, with them, and what their rows take by themselves."""

    without: float
    with_them: float
    bare: float

    @property
    def share(self) -> float:
        return (self.with_them - self.without) / self.bare


def measure() -> Result:
    result = Result(f"Read models: {USERS:,} users who follow {FOLLOWING} each, {COMMANDS:,} commands")
    for count in (1, 5):
        without, society = Society([]), Society(FIVE[:count])
        collect_rarely()
        rounds = [_round(without, society, FIVE[:count]) for _ in range(REPETITIONS)]
        result.rows += [
            Row.of("a command without read models", [costs.without for costs in rounds], "us"),
            Row.of(f"a command with {count}", [costs.with_them for costs in rounds], "us"),
            Row.of("  their rows, bare, for those whose rows can have changed", [costs.bare for costs in rounds], "us"),
        ]
        share = round(statistics.median(costs.share for costs in rounds), 2)
        result.aims.append(Aim(f"what {count} cost a command, in costs of their rows", "<= 2", share, share <= 2))
    for name, place in (("followers", "u17"), ("ranks", "u1")):
        rates = [_looks_per_second(society.image, name, place) for _ in range(REPETITIONS)]
        result.rows.append(Row.of(f"looks into {name}, {PAGE} rows, in the shard", rates, "1/s"))
    uvloop.run(measure_questions(result))
    return result


def _round(without: Society, society: Society, models: Sequence[type[ReadModel]]) -> Costs:
    readers = [model() for model in models]
    spent = []
    for _ in range(COMMANDS // BATCH):
        work = without.some_work()
        changing = dict.fromkeys(key for key, command in work if isinstance(command, Follow))
        spent.append((without.handle(work), without.bare(readers, changing), society.handle(work)))
    alone, bare, both = (sum(each) / COMMANDS * 1e6 for each in zip(*spent, strict=True))
    return Costs(alone, both, bare)


def _looks_per_second(image: Image, model: str, place: str) -> float:
    assert image.read_models is not None
    index = image.read_models.index(model)
    assert isinstance(index, SortedRows)
    started = time.perf_counter()
    for _ in range(LOOKS):
        index.find(place, None, PAGE)
    return LOOKS / (time.perf_counter() - started)
