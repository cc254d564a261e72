"""Clients and their gateway: sessions with one command at a time, and production's group commit."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from engram.codec.record import Envelope
from engram.image.outcome import Outcome
from engram.log.group import GroupCommit, Settled
from engram.log.partitioner import partition_of
from engram.model.position import Position
from engram.shard.requests import Await, Replies
from engram.testing.simulator.log import LogLine
from engram.testing.simulator.process import Process
from engram.testing.simulator.workers import SimulatedWorker


@dataclass(eq=False)
class Call:
    """A client's command, from its sending to its outcome. `places` are those where it is logged, as it was told."""

    envelope: Envelope
    state: str = "new"  # new, submitted, failed, logged, done
    places: list[Position] = field(default_factory=list)
    outcome: Outcome | None = None


class Gateway:
    """One process that takes commands in, appends them, and waits for their replies. It knows what it has appended;
    when it dies nobody does."""

    def __init__(self, process: Process, log: LogLine) -> None:
        self.name = process.name
        self.process = process
        self.workers: list[SimulatedWorker] = []
        self._calls: dict[tuple[int, int, int], Call] = {}
        self._partitions = log.partitions
        self._commit = GroupCommit(
            log, writer=self.name, clock=process.clock, on_settled=self._settled, new_worker=self._new_worker
        )

    def submit(self, call: Call) -> None:
        call.state = "submitted"
        self._commit.submit(partition_of(call.envelope.key, self._partitions), call.envelope, call)

    def replied(self, replies: Replies) -> None:
        """Those who wait for these outcomes get them."""
        indices = range(len(replies.outcomes)) if replies.indices is None else replies.indices
        for index, outcome in zip(indices, replies.outcomes, strict=True):
            call = self._calls.get((replies.partition, replies.offset, index))
            if call is not None and call.outcome is None:
                call.outcome, call.state = outcome, "done"

    def _settled(self, settled: Settled) -> None:
        for call, place in settled:
            if isinstance(place, Position):
                call.places.append(place)
                self._calls[place.partition, place.offset, place.index] = call
            if call.state == "submitted":
                call.state = "logged" if isinstance(place, Position) else "failed"

    def _new_worker(self, _name: str) -> SimulatedWorker:
        self.workers.append(SimulatedWorker())
        return self.workers[-1]


class Client:
    """A session: one command at a time, and the next when the last has its outcome. A command that may have been lost
    is sent again, under the same id; one with an idempotency key by another session, as by a program that was
    restarted."""

    def __init__(self, name: str) -> None:
        self.calls: list[Call] = []
        self._name = name
        self._sequence = 0
        self._keys = 0
        self._restarts = 0
        self._waiting: deque[tuple[int, bool]] = deque()
        self._current: Call | None = None

    @property
    def idle(self) -> bool:
        return not self._waiting and (self._current is None or self._current.state == "done")

    @property
    def current(self) -> Call | None:
        return self._current

    def want(self, command: int, *, once: bool) -> None:
        self._waiting.append((command, once))

    def act(
        self,
        gateway: Gateway,
        envelope: Callable[[int, str, int, str | None], Envelope],
        ask: Callable[[Await], None],
        *,
        again: bool,
    ) -> None:
        """The next thing that there is to do."""
        call = self._current
        if call is None or call.state == "done":
            if call is not None and again:
                gateway.submit(self._once_more(call))
            elif self._waiting:
                command, once = self._waiting.popleft()
                self._keys += once
                key = f"{self._name}-{self._keys}" if once else None
                self._sequence += 1
                self._begin(Call(envelope(command, self._name, self._sequence, key)))
                gateway.submit(self.calls[-1])
        elif call.state in ("new", "failed"):
            if call.envelope.idempotency_key is not None and call.state == "failed":
                self._restarts += 1
                session = f"{self._name}-again-{self._restarts}"
                self._begin(Call(call.envelope._replace(session=session, sequence=1)))
                call = self.calls[-1]
            gateway.submit(call)
        elif call.state == "logged":
            place = call.places[-1]
            if again:
                gateway.submit(call)
            else:
                ask(
                    Await(place.partition, place.offset, [(place.index, call.envelope.session, call.envelope.sequence)])
                )

    def gateway_died(self) -> None:
        """Whoever waited there does not know what became of it."""
        if self._current is not None and self._current.state in ("submitted", "logged"):
            self._current.state = "failed"

    def _begin(self, call: Call) -> None:
        self.calls.append(call)
        self._current = call

    def _once_more(self, call: Call) -> Call:
        """A copy that the network has made: nobody waits for it, and it must change nothing."""
        copy = Call(call.envelope)
        self.calls.append(copy)
        return copy
