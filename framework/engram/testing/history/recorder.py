"""A client that writes down what it does."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

from engram.errors import Denied, Misuse, Quarantined, Rejected, Unauthenticated
from engram.model.app import App
from engram.model.position import Position
from engram.serving.client import Client
from engram.serving.http_line import HttpLine
from engram.testing.history.operation import Operation, Outcome, to_line

T = TypeVar("T")


class Recorder:
    """What one client did, in order. With a path, each thing is in the file before it is done and again after it, so
    that a killed process leaves a history."""

    def __init__(self, client: str, path: Path | None = None) -> None:
        self.client = client
        self.operations: list[Operation] = []
        self._file = None if path is None else path.open("a", buffering=1)  # a line at a time

    def begin(self, **about: Any) -> int:
        """Notes that something begins; its number."""
        number = len(self.operations)
        self.operations.append(Operation(client=self.client, number=number, began=time.monotonic(), **about))
        self._write(number)
        return number

    def end(self, number: int, outcome: Outcome, **about: Any) -> None:
        operation = dataclasses.replace(self.operations[number], ended=time.monotonic(), outcome=outcome, **about)
        self.operations[number] = operation
        self._write(number)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _write(self, number: int) -> None:
        if self._file is not None:
            self._file.write(to_line(self.operations[number]) + "\n")


class RecordingClient(Client):
    """See `Client`. Queries and single commands are recorded; read models, watched queries and events are not."""

    def __init__(self, url: str, app: App, recorder: Recorder, **how: Any) -> None:
        self._recorder = recorder
        super().__init__(url, app, **how)

    def _open_line(self, base: str, **how: Any) -> HttpLine:
        return _RecordingLine(self._recorder, base, **how)


class _RecordingLine(HttpLine):
    def __init__(self, recorder: Recorder, base: str, **how: Any) -> None:
        super().__init__(base, **how)
        self._recorder = recorder

    async def post(
        self,
        path: str,
        parameters: dict[str, str],
        body: str | bytes,
        headers: dict[str, str],
        read: Callable[[bytes], T],
    ) -> T:
        kinds: dict[str, Literal["command", "query"]] = {"commands": "command", "queries": "query"}
        if path == "commands":
            raise Misuse("A recording client sends one command at a time: use send or submit.")
        kind, name = path.rsplit("/", 2)[1:]
        session = headers.get("Engram-Session")
        number = self._recorder.begin(
            kind=kinds[kind],
            key=parameters["key"],
            name=name,
            body=str(body),
            id=None if session is None else (session, int(headers["Engram-Sequence"])),
            idempotency_key=headers.get("Idempotency-Key"),
        )
        outcome: Outcome = "unknown"
        about: dict[str, Any] = {}

        def noted(answer: bytes) -> T:
            nonlocal outcome, about
            content = json.loads(answer)
            found = read(answer)
            outcome = "logged" if kind == "commands" and "reply" not in content else "replied"
            about = {"position": Position.parse(content["position"]), "result": content.get("reply", None)}
            if kind == "queries":
                about["result"] = content["answer"]
            return found

        try:
            return await super().post(path, parameters, body, headers, noted)
        except Rejected as problem:
            outcome, about = "rejected", {"result": problem.code}
            raise
        except Quarantined:
            outcome = "quarantined"
            raise
        except (Denied, Unauthenticated, Misuse):
            outcome = "refused"
            raise
        finally:
            self._recorder.end(number, outcome, token="" if self.seen is None else str(self.seen), **about)
