"""What do read models cost the commands that they follow, and what does a look into one take?

Users who follow fifty others: a lookup of followers, a ranking, a tally and two more of them. Half of the commands
change rows (one follows, and the oldest goes), half do not. The cost of a read model is compared with that of its own
`rows` for the same entities, run bare; on one image, in one process. What asking costs from outside is in
`bench.questions`.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Sequence

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

    def seconds_per_command(self) -> float:
        """Handles commands; records are made before the watch runs."""
        spent = 0.0
        for _ in range(COMMANDS // BATCH):
            work: list[tuple[str, Command[User, None]]] = [
                (f"u{self._random.randrange(USERS)}", self._follow() if n % 2 else See()) for n in range(BATCH)
            ]
            record = self._record(work)
            started = time.perf_counter()
            self.image.handle(record)
            spent += time.perf_counter() - started
        return spent / COMMANDS

    def _follow(self) -> Follow:
        return Follow(whom=f"u{self._random.randrange(USERS)}")

    def _record(self, work: list[tuple[str, Command[User, None]]]) -> Record:
        envelopes = [
            Envelope(c.__engram__.name or "", 1, key, c.model_dump_json().encode(), "s", next(self._sequence))
            for key, c in work
        ]
        return Record(0, self.image.offset, Kind.COMMANDS, 0, encode_commands(envelopes, "bench"))


def measure() -> Result:
    result = Result(f"Read models: {USERS:,} users who follow {FOLLOWING} each, {COMMANDS:,} commands")
    societies = {count: Society(FIVE[:count]) for count in (0, 1, 5)}
    collect_rarely()
    spent: dict[int, list[float]] = {count: [] for count in societies}
    own: dict[int, list[float]] = {1: [], 5: []}
    for _ in range(REPETITIONS):
        for count, society in societies.items():
            spent[count].append(society.seconds_per_command() * 1e6)
        for count, costs in own.items():
            costs.append(_own_cost(FIVE[:count], societies[0].image) * 1e6)
    for count, costs in spent.items():
        result.rows.append(Row.of(f"a command with {count} read models", costs, "us"))
    for count, costs in own.items():
        row = Row.of(f"the rows of {count}, bare", costs, "us")
        result.rows.append(row)
        cost = next(r.median for r in result.rows if r.case == f"a command with {count} read models")
        share = round((cost - result.rows[0].median) / row.median, 2)
        result.aims.append(Aim(f"what {count} cost a command, in costs of their rows", "<= 2", share, share <= 2))
    for name, place in (("followers", "u17"), ("ranks", "u1")):
        rates = [_looks_per_second(societies[5].image, name, place) for _ in range(REPETITIONS)]
        result.rows.append(Row.of(f"looks into {name}, {PAGE} rows, in the shard", rates, "1/s"))
    uvloop.run(measure_questions(result))
    return result


def _own_cost(models: Sequence[type[ReadModel]], image: Image) -> float:
    """Seconds per entity."""
    users = list(image.entities["user"].values())
    readers = [model() for model in models]
    started = time.perf_counter()
    for user in users:
        for reader in readers:
            list(reader.rows(user))
    return (time.perf_counter() - started) / len(users)


def _looks_per_second(image: Image, model: str, place: str) -> float:
    assert image.read_models is not None
    index = image.read_models.index(model)
    assert isinstance(index, SortedRows)
    started = time.perf_counter()
    for _ in range(LOOKS):
        index.find(place, None, PAGE)
    return LOOKS / (time.perf_counter() - started)
