"""One thing that a client did, and what it was told."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from engram.model.position import Position

# `unknown`: no word came, so that it may have been done or not. `refused`: it was not even logged.
Outcome = Literal["replied", "rejected", "quarantined", "logged", "unknown", "refused"]
CommandId = tuple[str, int]  # session and sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A command or a query. Times are those of `time.monotonic`, which all processes of a machine share.

    `result` is the reply or answer as JSON, or the code of a rejection. `position` is where a command was logged, or
    what an answer includes. `token` is all that the client had seen afterwards.
    """

    client: str
    number: int
    kind: Literal["command", "query"]
    key: str
    name: str
    body: str
    began: float
    id: CommandId | None = None
    idempotency_key: str | None = None
    ended: float | None = None
    outcome: Outcome = "unknown"
    result: Any = None
    position: Position | None = None
    token: str = ""

    @property
    def acknowledged(self) -> bool:
        """Whether the client was told that a command is logged, whatever became of it."""
        return self.kind == "command" and self.outcome in ("replied", "rejected", "quarantined", "logged")

    def __str__(self) -> str:
        return f"{self.client}'s {self.kind} {self.number} ({self.name} {self.body} for {self.key!r})"


def to_line(operation: Operation) -> str:
    """As JSON, for a file."""
    return json.dumps(dataclasses.asdict(operation))


def read_history(*paths: Path) -> list[Operation]:
    """The operations in files that recorders wrote, each as it was last known: of one that had begun when its process
    was killed, nothing more. A line that was being written then is left out."""
    found: dict[tuple[str, int], Operation] = {}
    for path in paths:
        for operation in _lines(path.read_text().splitlines()):
            found[operation.client, operation.number] = operation
    return list(found.values())


def _lines(lines: Iterable[str]) -> Iterable[Operation]:
    for line in lines:
        try:
            told = json.loads(line)
        except ValueError:
            continue
        id_, position = told.pop("id"), told.pop("position")
        yield Operation(
            **told,
            id=None if id_ is None else (id_[0], id_[1]),
            position=None if position is None else Position(*position),
        )
