"""Programs from seeds. Swarm testing: each seed has its own choice of what can happen, and how often."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from engram.testing.simulator.process import Landing, Peer
from engram.testing.simulator.steps import (
    GATEWAY,
    Act,
    Ask,
    Commit,
    Crash,
    CutOff,
    Fill,
    Flip,
    Go,
    Jump,
    Land,
    Lose,
    Pass,
    PowerLoss,
    Program,
    Rescale,
    Send,
    Setup,
    Snapshot,
    Step,
    TakeOver,
    Trouble,
    Turn,
    TurnOld,
    Upgrade,
    Work,
)

_MOST_SHARDS = 3
_MANY = 1_000_000
# How often each step comes, where it comes at all.
_ALWAYS = {"send": 10, "act": 5, "commit": 5, "turn": 8, "work": 6, "go": 5, "pass": 3}
_SOMETIMES = {
    "crash": 5, "power": 1, "take_over": 1, "old": 4, "cut_off": 2, "trouble": 3, "land": 2, "full": 1, "flip": 1,
    "jump": 1, "lose": 2, "snapshot": 2, "rescale": 1, "upgrade": 1, "ask": 3, "again": 2, "once": 1,
}  # fmt: skip
# What is of no use without another.
_NEEDS = {"old": "take_over", "land": "trouble"}


def draw(seed: int, *, commands: int, questions: int, upgrades: bool) -> Program:
    """The program of a seed, for an app with so many commands and questions to choose from."""
    random = Random(seed)  # noqa: S311 - reproducible is the point
    setup = _draw_setup(random)
    return Program(setup, _Drawing(random, setup, commands, questions, upgrades=upgrades).steps())


def _draw_setup(random: Random) -> Setup:
    return Setup(
        partitions=random.choice([1, 2, 2, 3]),
        shards=random.randint(1, 2),
        clients=random.randint(1, 3),
        independent=random.random() < 0.5,
        most=random.choice([1, 2, 1000, 1000]),
        forgetful=random.random() < 0.2,
        snapshot_every=random.choice([1, 3, 6, 12]),
        snapshot_slice=random.choice([1, 2, 500]),
        hot_entities=random.choice([0, 0, 1]),
        keep=random.choice([1, 2, 3]),
        parquet=random.random() < 0.02,
        snapshots_first=random.random() < 0.5,
    )


class _Drawing:
    """One program."""

    def __init__(self, random: Random, setup: Setup, commands: int, questions: int, *, upgrades: bool) -> None:
        self._random = random
        self._setup = setup
        self._commands = commands
        self._questions = questions
        chosen = {kind: weight for kind, weight in _SOMETIMES.items() if random.random() < 0.4}
        for kind, other in _NEEDS.items():
            if other not in chosen:
                chosen.pop(kind, None)
            elif kind == "old":
                chosen[kind] = _SOMETIMES[kind]
        if not questions:
            chosen.pop("ask", None)
        if not upgrades:
            chosen.pop("upgrade", None)
        weights = _ALWAYS | {kind: weight * random.choice([1, 1, 3]) for kind, weight in chosen.items()}
        self._kinds, self._weights = list(weights), list(weights.values())
        self._draws: dict[str, Callable[[], Step]] = {
            "send": lambda: Send(self._client(), random.randrange(commands)),
            "once": lambda: Send(self._client(), random.randrange(commands), once=True),
            "act": lambda: Act(self._client()),
            "again": lambda: Act(self._client(), again=True),
            "commit": Commit,
            "turn": lambda: Turn(self._shard()),
            "work": lambda: Work(self._shard(), random.randrange(2)),
            "go": lambda: Go(random.randint(1, 3)),
            "old": lambda: TurnOld(random.randrange(3)),
            "pass": lambda: Pass(random.choice([1, 50, 600, 3000])),
            "jump": lambda: Jump(self._anybody(), random.choice([-20_000, -500, 500, 20_000])),
            "crash": lambda: Crash(self._anybody(), random.choice([0, 0, 1, 1, 2, 3, 5, 8, 13, 21]), self._amount()),
            "power": lambda: PowerLoss(random.choice(["clean", "torn", "lost", "uneven"])),
            "take_over": lambda: TakeOver(self._shard()),
            "cut_off": self._draw_cut_off,
            "trouble": self._draw_trouble,
            "land": Land,
            "full": lambda: Fill(random.random() < 0.6),
            "flip": lambda: Flip(random.randrange(_MANY), random.randrange(_MANY)),
            "lose": lambda: Lose(random.randint(1, 3)),
            "snapshot": lambda: Snapshot(random.randrange(setup.partitions)),
            "rescale": lambda: Rescale(random.randint(1, _MOST_SHARDS), random.random() < 0.5),
            "upgrade": Upgrade,
            "ask": lambda: Ask(self._client(), random.randrange(self._questions), random.random() < 0.5),
        }

    def steps(self) -> list[Step]:
        count = self._random.choice([8, 16, 24, 40])
        return [self._draws[kind]() for kind in self._random.choices(self._kinds, self._weights, k=count)]

    def _draw_cut_off(self) -> Step:
        random = self._random
        shard = self._anybody()
        peers: list[Peer] = ["log", "store"]
        peer = random.choice(peers) if shard != GATEWAY else "log"
        return CutOff(shard, peer, random.choice([1, 2, 4, 10, 30]))

    def _draw_trouble(self) -> Step:
        landings: list[Landing] = ["refused", "unsure", "torn", "late"]
        landing = self._random.choice(landings)
        return Trouble(self._anybody(), landing, self._amount())

    def _amount(self) -> int:
        return self._random.choice([0, 0, 1, 2, 1000])

    def _client(self) -> int:
        return self._random.randrange(self._setup.clients)

    def _shard(self) -> int:
        return self._random.randrange(_MOST_SHARDS)

    def _anybody(self) -> int:
        return self._random.randrange(GATEWAY, _MOST_SHARDS)
