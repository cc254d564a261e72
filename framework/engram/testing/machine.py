"""A Hypothesis state machine made out of an app: whatever happens, it comes to the same state by every way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from engram.codec.codec import Codec
from engram.errors import Rejected
from engram.model.app import App
from engram.model.command import Command
from engram.model.query import Query
from engram.testing.model import Model
from engram.testing.program import Program
from engram.testing.scenario import START, Scenario
from engram.testing.strategies import KEYS, commands, queries

# Two are enough for messages between partitions and for another number of shards, and take half the time of four.
_PARTITIONS = 2
_LONGEST = timedelta(days=40)

Invariant = Callable[[Scenario], None]


class AppMachine(RuleBasedStateMachine):
    """What `machine` returns is made from this. `scenario` is the app that is being tested."""

    def __init__(self, codec: Codec, model: Model | None, invariants: Sequence[Invariant], upgrade: App | None) -> None:
        super().__init__()
        app = codec.app
        self.scenario = Scenario(app, partitions=_PARTITIONS, start=START, codec=codec)
        self._model = model
        self._invariants = invariants
        self._upgrade = upgrade
        self._program = Program(app, partitions=_PARTITIONS)
        self._failed = False

    def teardown(self) -> None:
        """In the end everything is recovered in every way."""
        if self._failed:
            return
        new = "" if self._upgrade is None else self._program.app(self._upgrade, "new_app")
        with self._step("s.check()"):
            self.scenario.check()
        with self._step("s.check_shards()"):
            self.scenario.check_shards()
        with self._step(f"s.check_upgrade({new})"):
            self.scenario.check_upgrade(self._upgrade)

    def _send(self, key: str, command: Command[Any, Any]) -> None:
        expected = self._expected(lambda model: model.handle(key, command, self.scenario.now))
        with self._step(f"s.when({self._program.text(key)}, {self._program.text(command)}){self._ending(expected)}"):
            then = self.scenario.when(key, command)
            if isinstance(expected, Rejected):
                then.rejected(expected.code)
            elif expected is NotImplemented:
                then.handled()
            else:
                then.replies(expected)
        for invariant in self._invariants:
            with self._step(f"{self._program.function(invariant)}(s)"):
                invariant(self.scenario)

    def _ask(self, key: str, query: Query[Any, Any]) -> None:
        expected = self._expected(lambda model: model.answer(key, query))
        ending = self._ending(expected).replace(".replies(", ".answers(")
        with self._step(f"s.asks({self._program.text(key)}, {self._program.text(query)}){ending}"):
            asked = self.scenario.asks(key, query)
            if isinstance(expected, Rejected):
                asked.rejected(expected.code)
            elif expected is not NotImplemented:
                asked.answers(expected)

    def _pass_time(self, duration: timedelta) -> None:
        with self._step(f"s.pass_time({self._program.text(duration)})"):
            self.scenario.pass_time(duration)

    def _snapshot(self) -> None:
        with self._step("s.snapshot()"):
            self.scenario.snapshot()

    def _ending(self, expected: Any) -> str:
        if isinstance(expected, Rejected):
            return f".rejected({expected.code!r})"
        return ".handled()" if expected is NotImplemented else f".replies({self._program.text(expected)})"

    def _expected(self, say: Callable[[Model], Any]) -> Any:
        """What the model says, a rejection included; `NotImplemented` if there is none, or it says nothing."""
        if self._model is None:
            return NotImplemented
        try:
            return say(self._model)
        except Rejected as refused:
            return refused

    @contextmanager
    def _step(self, line: str) -> Iterator[None]:
        """One line of the program. What goes wrong in it is told with all lines up to it."""
        self._program.add(line)
        try:
            yield
        except Exception as problem:
            self._failed = True
            problem.add_note(f"As a program that fails in the same way:\n\n{self._program}\n")
            raise


def machine(
    app: App,
    *types: type[Command[Any, Any]],
    keys: Sequence[str] = KEYS,
    model: Callable[[], Model] | None = None,
    invariants: Sequence[Invariant] = (),
    upgrade: App | None = None,
) -> type[AppMachine]:
    """A Hypothesis state machine of an app: commands, queries, time that passes, and snapshots, in any order.

        TestBank = machine(app, Deposit, Transfer, invariants=[no_money_is_made]).TestCase

    `types` are the commands that clients send; all of the app's if none are given. Everything that `scenario` checks is
    checked after each step, and all `invariants`, which are given the scenario and raise when they do not hold; replies
    and answers are those of a `model`, if there is one. In the end the state is recovered from the log alone, from each
    snapshot and the records after it, by one shard and by one for each partition, and by the next version of the app:
    `upgrade`, or the same code with the next number. All must come to the same, read models too.

    A failure is shrunk by Hypothesis, and printed as a program: imports, and one line for each step.
    """
    codec = Codec(app)
    sending = commands(app, *types, keys=keys)
    asking = queries(app, keys=keys) if app.queries else st.nothing()

    class OfThisApp(AppMachine):
        def __init__(self) -> None:
            super().__init__(codec, None if model is None else model(), invariants, upgrade)

        @rule(sent=sending)
        def send(self, sent: tuple[str, Command[Any, Any]]) -> None:
            self._send(*sent)

        @rule(asked=asking)
        def ask(self, asked: tuple[str, Query[Any, Any]]) -> None:
            self._ask(*asked)

        @rule(duration=st.timedeltas(timedelta(), _LONGEST))
        def pass_time(self, duration: timedelta) -> None:
            self._pass_time(duration)

        @rule()
        def snapshot(self) -> None:
            self._snapshot()

    OfThisApp.__qualname__ = OfThisApp.__name__ = f"{app.name.title().replace('_', '')}Machine"
    return OfThisApp
