"""What became of a command, and the ways to say what should have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from engram.errors import Rejected
from engram.image.outcome import Outcome, Verdict
from engram.model.command import Command
from engram.model.event import Event
from engram.testing.checked import same

R = TypeVar("R")
A = TypeVar("A")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One handled command. `reply` counts only if the outcome is a reply; `failure` is what its handler raised."""

    told: str
    outcome: Outcome
    reply: Any
    failure: Exception | None
    sent: list[tuple[str, Command[Any, Any]]]
    emitted: list[Event]


class Then(Generic[R]):
    """The end of a `when`. Each method asserts one thing and returns this again, so that they can be chained."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self.quarantine_expected = False

    @property
    def reply(self) -> R:
        """The reply, which there must be."""
        if self._step.outcome.verdict is not Verdict.REPLY:
            self._fail("a reply")
        return self._step.reply  # type: ignore[no-any-return]  # the codec decodes R

    @property
    def sent(self) -> list[tuple[str, Command[Any, Any]]]:
        """What the command itself sent, with the keys, in order."""
        return self._step.sent

    @property
    def emitted(self) -> list[Event]:
        """What the command itself emitted, in order."""
        return self._step.emitted

    def replies(self, expected: R) -> Then[R]:
        __tracebackhide__ = True
        if self._step.outcome.verdict is not Verdict.REPLY or not same(self._step.reply, expected):
            self._fail(f"the reply {expected!r}")
        return self

    def rejected(self, code: str) -> Then[R]:
        __tracebackhide__ = True
        error = self._step.outcome.error
        if not isinstance(error, Rejected) or error.code != code:
            self._fail(f"the rejection {code!r}")
        return self

    def quarantined(self, error: type[Exception]) -> Then[R]:
        """Its handler raised `error`, which is not `Rejected`: a mistake in the app, kept from doing harm."""
        __tracebackhide__ = True
        self.quarantine_expected = True
        if not isinstance(self._step.failure, error):
            self._fail(f"a quarantine by {error.__name__}")
        return self

    def handled(self) -> Then[R]:
        """It replied or was rejected. For generated commands, of which one cannot say more."""
        __tracebackhide__ = True
        if self._step.failure is not None:
            self._fail("a reply or a rejection")
        return self

    def emits(self, *events: Event) -> Then[R]:
        """It emitted these events and no others, in this order; without arguments, none."""
        __tracebackhide__ = True
        if not same(self._step.emitted, list(events)):
            raise AssertionError(
                f"{self._step.told} emitted {_listed(self._step.emitted)}; expected {_listed(list(events))}."
            )
        return self

    def sends(self, key: str, command: Command[Any, Any]) -> Then[R]:
        """It sent this command to this key, perhaps among others. It has been delivered by now."""
        __tracebackhide__ = True
        if not any(to == key and same(sent, command) for to, sent in self._step.sent):
            sent = [f"{sent!r} to {to!r}" for to, sent in self._step.sent]
            raise AssertionError(
                f"{self._step.told} sent {', '.join(sent) or 'nothing'}; expected {command!r} to {key!r}."
            )
        return self

    def sends_nothing(self) -> Then[R]:
        __tracebackhide__ = True
        if self._step.sent:
            sent = [f"{sent!r} to {to!r}" for to, sent in self._step.sent]
            raise AssertionError(f"{self._step.told} sent {', '.join(sent)}; expected nothing.")
        return self

    def unexpected_quarantine(self) -> None:
        """Raises `AssertionError` when the handler failed and nobody has said that it should."""
        __tracebackhide__ = True
        if self._step.failure is not None and not self.quarantine_expected:
            self._fail("no quarantine, or .quarantined(...) in the test")

    def _fail(self, expected: str) -> None:
        __tracebackhide__ = True
        step = self._step
        raise AssertionError(f"{step.told} {_told(step)}; expected {expected}.") from step.failure


def _told(step: Step) -> str:
    if step.failure is not None:
        return f"was quarantined ({type(step.failure).__name__}: {step.failure})"
    error = step.outcome.error
    return f"replied {step.reply!r}" if error is None else f"was rejected ({error})"


def _listed(events: list[Event]) -> str:
    return ", ".join(map(repr, events)) or "nothing"


class Asked(Generic[A]):
    """The end of an `asks`. Each method asserts one thing."""

    def __init__(self, told: str, answer: A | Rejected) -> None:
        self._told = told
        self._answer = answer

    def answers(self, expected: A) -> None:
        __tracebackhide__ = True
        if isinstance(self._answer, Rejected) or not same(self._answer, expected):
            self._fail(f"the answer {expected!r}")

    def rejected(self, code: str) -> None:
        __tracebackhide__ = True
        if not isinstance(self._answer, Rejected) or self._answer.code != code:
            self._fail(f"the rejection {code!r}")

    def handled(self) -> None:
        """It was answered or refused. For generated queries, of which one cannot say more."""

    def _fail(self, expected: str) -> None:
        __tracebackhide__ = True
        refused = isinstance(self._answer, Rejected)
        was = f"rejected ({self._answer})" if refused else f"answered {self._answer!r}"
        raise AssertionError(f"{self._told} was {was}; expected {expected}.")
