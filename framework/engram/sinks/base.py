"""The contract of a sink: where an app's events go by themselves, each at least once and in effect once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from engram.errors import Unavailable
from engram.log.cursor import Place
from engram.model.effects import OutEvent


class NotNow(Unavailable):
    """A sink does not take events now, and says when it will: not before `seconds` from now."""

    def __init__(self, text: str, seconds: float) -> None:
        super().__init__(text)
        self.seconds = seconds


class Sink(Protocol):
    """Takes events. It is driven by one thread, which asks it again until it has taken what is next.

    Such a sink must be idempotent: after a crash or an error it gets events again that it has taken already, with the
    same ids (`engram.log.stream.id_of`), and drops them by these or does the same again. How far it is, is kept beside
    the log. A sink that can keep that itself is a `TransactionalSink`.

    `name` is what it is called in reports: no secrets. Its events are counted by it: another name begins from the
    start. `at_once` is how many events it takes at most.
    """

    name: str
    at_once: int

    def deliver(self, events: Sequence[OutEvent]) -> None:
        """Returns when all of them have arrived. The events of a partition come in their order.

        Whatever it raises, the same events come again, after a while that grows up to a minute; after `NotNow`, not
        before the time that it says.
        """

    def close(self) -> None:
        """Ends it; a delivery that is under way on another thread may fail."""


@runtime_checkable
class TransactionalSink(Sink, Protocol):
    """Keeps how far it is together with the events, in one transaction: each arrives exactly once."""

    def place(self, partition: int) -> Place:
        """The place of the last event of the partition that it has; `NOWHERE` if it has none."""
