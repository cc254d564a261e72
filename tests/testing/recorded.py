"""Histories of ledgers as right apps give them, made up: clients that wait, records of one command each, answers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from engram import Position
from engram.log.partitioner import partition_of
from engram.model.token import Token
from engram.testing.history import Logged, Operation
from hypothesis import strategies as st

from tests.spark.ledger import Add, Entries, app

PARTITIONS = 2
KEYS = ["ada", "bob", "cleo", "dora"]
NOW = datetime(2024, 1, 1, tzinfo=UTC)


class Ledgers:
    """The model of `tests.spark.ledger`, and of the ledgers of the storms: lists of numbers."""

    def __init__(self) -> None:
        self._entries: dict[str, list[int]] = {}

    def handle(self, key: str, command: object, now: datetime) -> int:
        entries = self._entries.setdefault(key, [])
        entries.append(command.number)
        return len(entries)

    def answer(self, key: str, query: object) -> list[int]:
        """What is counted by messages, it does not know."""
        return list(self._entries.get(key, [])) if query.__engram__.name == "entries" else NotImplemented


@dataclass(frozen=True)
class Step:
    """What a client does next: a command or a query, how long until it takes effect, and until it is told."""

    client: int
    asks: bool
    key: str
    effect: int
    told: int
    heard: bool  # whether the word of it arrives


steps = st.builds(
    Step,
    client=st.integers(0, 2),
    asks=st.booleans(),
    key=st.sampled_from(KEYS),
    effect=st.integers(1, 9),
    told=st.integers(1, 9),
    heard=st.integers(0, 9).map(bool),
)


@dataclass
class Recorded:
    """A history, and what the log has."""

    operations: list[Operation]
    logged: dict[tuple[str, int], Logged]
    answers: dict[tuple[str, int], list[list[int]]] = field(default_factory=dict)


def record(script: list[Step]) -> Recorded:
    """Runs the clients side by side: effects take place one after the other, in the order of their moments."""
    clocks = [0.0, 0.001, 0.002]  # no two moments are the same
    begun: list[tuple[float, float, float, Step]] = []
    for step in script:
        at = clocks[step.client]
        begun.append((at, at + step.effect, at + step.effect + step.told, step))
        clocks[step.client] = at + step.effect + step.told + 1
    world = _World()
    made: list[Operation | None] = [None] * len(begun)
    for number in sorted(range(len(begun)), key=lambda number: begun[number][1]):
        made[number] = world.happens(number, *begun[number])
    return Recorded(_with_tokens([operation for operation in made if operation is not None]), world.logged)


class _World:
    def __init__(self) -> None:
        self.entries: dict[str, list[int]] = {}
        self.logged: dict[tuple[str, int], Logged] = {}
        self.ends = [0] * PARTITIONS

    def happens(self, number: int, began: float, _effect: float, ended: float, step: Step) -> Operation:
        partition = partition_of(step.key, PARTITIONS)
        entries = self.entries.setdefault(step.key, [])
        about = {"client": f"c{step.client}", "number": number, "key": step.key, "began": began, "ended": ended}
        if step.asks:
            body, result = Entries(), list(entries)
            position = Position(partition, self.ends[partition] - 1, 0) if self.ends[partition] else None
            kind, id_ = "query", None
        else:
            body = Add(number=number)
            entries.append(number)
            kind, id_, result = "command", (about["client"], number), len(entries)
            position = Position(partition, self.ends[partition], 0)
            self.ends[partition] += 1
            self.logged[id_] = Logged(position, step.key, body, NOW, 1)
        heard = step.heard and position is not None
        return Operation(
            **about,
            kind=kind,
            name=type(body).__engram__.name,
            body=body.model_dump_json(),
            id=id_,
            outcome="replied" if heard else "unknown",
            result=json.loads(json.dumps(result)) if heard else None,
            position=position if heard else None,
        )


def _with_tokens(operations: list[Operation]) -> list[Operation]:
    """Each client has seen all that it was told."""
    seen: dict[str, Token] = {}
    told = []
    for operation in sorted(operations, key=lambda operation: operation.ended):
        token = seen.get(operation.client, Token(app.name, PARTITIONS))
        if operation.position is not None:
            token |= Token.of(app.name, PARTITIONS, [operation.position])
        seen[operation.client] = token
        told.append(replace(operation, token=str(token)))
    return told
