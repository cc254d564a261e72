"""Generated histories with questions all the while: each answer is that of the sequential model at its position."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from engram import Command
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from structlog.testing import capture_logs

from tests.read_models.__main__ import PLACES, walk
from tests.read_models.club import GAMES, KEYS, SENT, Show, Standing
from tests.read_models.history import BOUNDS, MODELS, PARTITIONS, Bound, History

# Few enough commands between two snapshots that a history has several of every partition.
snapshot_every = st.integers(1, 12)
numbers = st.integers(0, PARTITIONS - 1)
shard_counts = st.integers(1, PARTITIONS)
bounds = st.sampled_from(BOUNDS)
queries = st.one_of(st.just(Show()), st.builds(Standing, game=st.sampled_from(GAMES)))
looks = st.sampled_from(MODELS).flatmap(lambda model: st.tuples(st.just(model), st.sampled_from(PLACES[model])))


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """Commands that fail are told with their traceback, and there are very many: that would take most of the time."""
    with capture_logs():
        yield


class Histories(RuleBasedStateMachine):
    """The club, as Hypothesis likes it: what fails is made as short as it can be. See `History`."""

    history: History | None = None

    @initialize(count=shard_counts, every=snapshot_every)
    def begin(self, count: int, every: int) -> None:
        self.history = History(count, every)

    @rule(sent=st.lists(SENT, min_size=1, max_size=6))
    def send(self, sent: list[tuple[str, Command[Any, Any]]]) -> None:
        self.history.send(sent)

    @rule(number=numbers, turns=st.integers(1, 3))
    def step(self, number: int, turns: int) -> None:
        self.history.step(number, turns)

    @rule()
    def step_the_old(self) -> None:
        self.history.step_the_old()

    @rule(number=numbers)
    def crash(self, number: int) -> None:
        self.history.crash(number)

    @rule(number=numbers)
    def take_over(self, number: int) -> None:
        self.history.take_over(number)

    @rule(count=shard_counts, every=snapshot_every, clean=st.booleans())
    def restart(self, count: int, every: int, clean: bool) -> None:
        self.history.restart(count, every, clean=clean)

    @rule(partition=numbers)
    def snapshot(self, partition: int) -> None:
        self.history.snapshot(partition)

    @rule(milliseconds=st.integers(100, 1500))
    def wait(self, milliseconds: int) -> None:
        self.history.wait(milliseconds)

    @rule(key=st.sampled_from(KEYS), query=queries, bound=bounds, old=st.booleans())
    def ask(self, key: str, query: Show | Standing, bound: Bound, old: bool) -> None:
        self.history.ask(key, query, bound, old=old)

    @rule(at=looks, limit=st.integers(1, 3), bound=bounds, old=st.booleans())
    def look(self, at: tuple[str, str], limit: int, bound: Bound, old: bool) -> None:
        self.history.look(*at, limit, bound, old=old)

    def teardown(self) -> None:
        if self.history is not None:
            try:
                self.history.come_to_rest()
                for model in MODELS:  # what was not taken away would be found here, if not before
                    for place in PLACES[model]:
                        self.history.look(model, place, 2, "none", old=False)
                self.history.come_to_rest()
            finally:
                self.history.close()


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)


def test_a_thousand_answers_are_those_of_the_model():
    """The short form of `make models`: no answer is wrong or too old, and everything that can happen has."""
    done = walk(seed=0, questions=1000)

    assert done["queries"] + done["lookups"] >= 1000
    happened = ["crashes", "takeovers", "rescales", "snapshots", "asked again", "further pages", "rejected queries"]
    bounded = ["answers that had to include something", "refused: not there in time"]
    assert all(done[what] for what in [*happened, *bounded, *(f"lookups in {model}" for model in MODELS)]), done
