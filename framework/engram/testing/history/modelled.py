"""What clients were told, against what a model comes to."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from engram.codec.codec import Codec
from engram.errors import Rejected
from engram.model.position import Position
from engram.testing.history.logged import Logged
from engram.testing.history.operation import CommandId, Operation
from engram.testing.model import Model

Wrong = tuple[Literal["reply", "answer"], str]
Place = Callable[[Operation], Position | None]
_UNKNOWN_TIME = datetime(1970, 1, 1, tzinfo=UTC)


def differences(
    operations: Sequence[Operation],
    codec: Codec,
    place: Place,
    logged: Mapping[CommandId, Logged] | None,
    model: Callable[[], Model],
) -> tuple[list[Wrong], int]:
    """All replies and answers that are not the model's, and of how many keys that could not be found out to the end."""
    by_key: dict[str, list[Operation]] = defaultdict(list)
    for operation in operations:
        by_key[operation.key].append(operation)
    wrong: list[Wrong] = []
    unchecked = 0
    for key, done in by_key.items():
        of_key = _OfKey(key, codec, model(), logged)
        placed = [(found, op) for op in done if (found := place(op)) is not None and op.outcome != "refused"]
        doubtful = logged is None and any(op.kind == "command" and place(op) is None for op in done)
        if doubtful:
            unchecked += 1
            continue
        # An answer is as of the whole record: all commands of that are before it.
        placed.sort(key=lambda each: (each[0].offset, each[1].kind == "query", each[0]))
        for found, operation in placed:
            wrong += of_key.told(operation, found)
    return wrong, unchecked


class _OfKey:
    def __init__(self, key: str, codec: Codec, model: Model, logged: Mapping[CommandId, Logged] | None) -> None:
        self._key = key
        self._codec = codec
        self._model = model
        self._logged = logged or {}
        self._once: dict[str, Operation] = {}  # by idempotency key

    def told(self, operation: Operation, place: Position) -> Iterator[Wrong]:
        """What is wrong with what a client was told, of the next operation in the order of the log."""
        if operation.idempotency_key is not None:
            first = self._once.setdefault(operation.idempotency_key, operation)
            if first is not operation:
                if operation.outcome == "replied" and operation.result != first.result:
                    yield "reply", f"{operation} has the idempotency key of {first}, and another reply"
                return
        of, expected = self._command(operation) if operation.kind == "command" else self._query(operation)
        if expected is NotImplemented or operation.outcome in ("unknown", "logged"):
            return
        if isinstance(expected, Rejected):
            wanted: Any = ("rejected", expected.code)
        else:
            wanted = ("replied", json.loads(self._codec.result_encoder(of)(expected)))
        if (operation.outcome, operation.result) != wanted:
            text = (
                f"{operation}, at {place}, was {operation.outcome} with {_short(operation.result)}; the model has "
                f"{wanted[0]} with {_short(wanted[1])}"
            )
            yield "reply" if operation.kind == "command" else "answer", text

    def _command(self, operation: Operation) -> tuple[type[Any], Any]:
        known = None if operation.id is None else self._logged.get(operation.id)
        cls = self._codec.app.commands[operation.name]
        command = cls.model_validate_json(operation.body) if known is None else known.command
        try:
            return cls, self._model.handle(self._key, command, _UNKNOWN_TIME if known is None else known.now)
        except Rejected as refused:
            return cls, refused

    def _query(self, operation: Operation) -> tuple[type[Any], Any]:
        cls = self._codec.app.queries[operation.name]
        try:
            return cls, self._model.answer(self._key, cls.model_validate_json(operation.body))
        except Rejected as refused:
            return cls, refused


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:100]} ... {text[-90:]}"
