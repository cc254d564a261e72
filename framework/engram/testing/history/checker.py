"""Whether a history can be that of an app that keeps its promises."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter
from typing import Literal, NamedTuple

from engram.codec.codec import Codec
from engram.model.app import App
from engram.model.position import Position
from engram.model.token import Token
from engram.testing.history.logged import Logged
from engram.testing.history.modelled import differences
from engram.testing.history.operation import CommandId, Operation
from engram.testing.model import Model

Kind = Literal["lost", "duplicated", "order", "reply", "answer", "torn", "read_your_writes", "tokens"]


class Anomaly(NamedTuple):
    """Something that must not be in a history."""

    kind: Kind
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was looked at, and what was wrong. `unchecked` has keys of which a model could say nothing from some point
    on, because it is not known whether a command was handled: give what is logged to find out."""

    commands: int
    acknowledged: int
    unknown: int
    queries: int
    keys: int
    unchecked: int
    anomalies: list[Anomaly] = field(default_factory=list)

    def count(self, kind: Kind) -> int:
        return sum(anomaly.kind == kind for anomaly in self.anomalies)

    def raise_if_wrong(self) -> None:
        """Raises `AssertionError` with the first anomalies, if there are any."""
        if self.anomalies:
            counts = ", ".join(f"{count} x {kind}" for kind, count in Counter(a.kind for a in self.anomalies).items())
            told = "\n".join(f"  {anomaly.kind}: {anomaly.text}" for anomaly in self.anomalies[:20])
            raise AssertionError(f"{len(self.anomalies)} anomalies ({counts}):\n{told}")


def check(
    history: Iterable[Operation],
    app: App,
    *,
    logged: Mapping[CommandId, Logged] | None = None,
    model: Callable[[], Model] | None = None,
) -> Verdict:
    """Looks for what no app that keeps its promises does:

    - `lost`, `duplicated`: an acknowledged command is in the log, as it was sent, and no two have one position;
    - `order`: of two commands of a partition, one that began when the other was acknowledged comes after it;
    - `read_your_writes`: an answer includes all that its client had been told of its partition before;
    - `torn`: the same question at the same position has the same answer;
    - `tokens`: what a client has seen never becomes less;
    - `reply`, `answer`: what clients are told is what a model comes to, which is given every command of a key once, in
      the order of their positions; the model makes the state of a key from its commands alone, so it has to know
      nothing of messages between entities, or to say nothing where they matter.

    `logged` is what the log has, see `commands_in`: without it nothing is known of lost commands, and nothing of a key
    from a command on of which nobody has heard.
    """
    operations = sorted(history, key=attrgetter("began"))
    places = _Places(logged)
    anomalies = [
        *_lost(operations, logged),
        *_duplicated(operations),
        *_out_of_order(operations, places),
        *_behind(operations, places),
        *_torn(operations),
        *_tokens(operations),
    ]
    unchecked = 0
    if model is not None:
        wrong, unchecked = differences(operations, Codec(app), places.of, logged, model)
        anomalies += [Anomaly(kind, text) for kind, text in wrong]
    commands = [operation for operation in operations if operation.kind == "command"]
    return Verdict(
        commands=len(commands),
        acknowledged=sum(operation.acknowledged for operation in commands),
        unknown=sum(operation.outcome == "unknown" for operation in commands),
        queries=len(operations) - len(commands),
        keys=len({operation.key for operation in operations}),
        unchecked=unchecked,
        anomalies=anomalies,
    )


class _Places:
    """Where commands took effect: where the log has them first, or else where clients were told that they are."""

    def __init__(self, logged: Mapping[CommandId, Logged] | None) -> None:
        self._logged = logged or {}

    def of(self, operation: Operation) -> Position | None:
        found = None if operation.id is None else self._logged.get(operation.id)
        return operation.position if found is None else found.position


def _lost(operations: Sequence[Operation], logged: Mapping[CommandId, Logged] | None) -> Iterator[Anomaly]:
    for operation in operations if logged is not None else ():
        if not operation.acknowledged or operation.id is None:
            continue
        assert logged is not None
        found = logged.get(operation.id)
        if found is None:
            yield Anomaly("lost", f"{operation} was acknowledged at {operation.position}, and the log does not have it")
        elif (found.key, found.command.__engram__.name) != (operation.key, operation.name):
            yield Anomaly("lost", f"{operation} was acknowledged, and the log has {found.command!r} for {found.key!r}")


def _duplicated(operations: Sequence[Operation]) -> Iterator[Anomaly]:
    at: dict[Position, Operation] = {}
    for operation in operations:
        place = operation.position
        if not operation.acknowledged or place is None:
            continue
        other = at.setdefault(place, operation)
        same = operation.idempotency_key is not None and operation.idempotency_key == other.idempotency_key
        if other is not operation and not same:
            yield Anomaly("duplicated", f"{operation} and {other} were both acknowledged at {place}")


def _out_of_order(operations: Sequence[Operation], places: _Places) -> Iterator[Anomaly]:
    """Sweeps over time: whatever begins comes after all that was acknowledged before."""
    by_partition: dict[int, list[tuple[Operation, Position]]] = defaultdict(list)
    for operation in operations:
        place = places.of(operation)
        if operation.acknowledged and operation.idempotency_key is None and place is not None:
            by_partition[place.partition].append((operation, place))
    for placed in by_partition.values():
        ended = sorted(((op.ended or 0.0, place, op) for op, place in placed), key=lambda each: each[0])
        latest: tuple[Position, Operation] | None = None
        next_ended = 0
        for operation, place in placed:
            while ended[next_ended][0] < operation.began:
                _, other_place, other = ended[next_ended]
                latest = max(latest or (other_place, other), (other_place, other), key=lambda each: each[0])
                next_ended += 1
            if latest is not None and latest[0] > place:
                yield Anomaly(
                    "order", f"{operation} is at {place}, though {latest[1]} was acknowledged at {latest[0]} before"
                )


def _behind(operations: Sequence[Operation], places: _Places) -> Iterator[Anomaly]:
    """What a client was told of a partition is in every answer that it asks for later."""
    told: dict[tuple[str, int], list[tuple[float, int, Operation]]] = defaultdict(list)
    for operation in operations:
        place = places.of(operation)
        if operation.ended is not None and place is not None and operation.outcome in ("replied", "logged"):
            told[operation.client, place.partition].append((operation.ended, place.offset, operation))
    for known in told.values():
        known.sort(key=lambda each: each[0])
        asked = sorted((op for _, _, op in known if op.kind == "query"), key=attrgetter("began"))
        furthest: tuple[int, Operation] | None = None
        next_known = 0
        for query in asked:
            while known[next_known][0] < query.began:
                _, offset, operation = known[next_known]
                if furthest is None or offset > furthest[0]:
                    furthest = offset, operation
                next_known += 1
            assert query.position is not None
            if furthest is not None and query.position.offset < furthest[0]:
                yield Anomaly(
                    "read_your_writes",
                    f"{query} was answered as of {query.position}, though its client had been told of record "
                    f"{furthest[0]} by {furthest[1]}",
                )


def _torn(operations: Sequence[Operation]) -> Iterator[Anomaly]:
    answers: dict[tuple[str, str, str, Position], Operation] = {}
    for operation in operations:
        if operation.kind == "query" and operation.outcome == "replied" and operation.position is not None:
            place = operation.position._replace(index=0)  # reads are between records
            first = answers.setdefault((operation.key, operation.name, operation.body, place), operation)
            if first.result != operation.result:
                yield Anomaly(
                    "torn",
                    f"{operation} and {first} are both as of record {operation.position}, and have different answers: "
                    f"{json.dumps(operation.result)[:200]} and {json.dumps(first.result)[:200]}",
                )


def _tokens(operations: Sequence[Operation]) -> Iterator[Anomaly]:
    by_client: dict[str, list[Operation]] = defaultdict(list)
    for operation in operations:
        if operation.ended is not None and operation.token:
            by_client[operation.client].append(operation)
    for told in by_client.values():
        told.sort(key=lambda operation: (operation.ended, operation.number))
        for before, after in pairwise(told):
            seen, now = Token.parse(before.token), Token.parse(after.token)
            if seen | now != now:
                yield Anomaly("tokens", f"after {after} its client had seen {now}, which is less than {seen} before")
