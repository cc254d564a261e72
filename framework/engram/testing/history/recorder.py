"""A client that writes down what it does."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any, Literal

from engram.errors import Denied, Misuse, Quarantined, Rejected, Unauthenticated
from engram.model.app import App
from engram.model.position import Position
from engram.serving.client import Client
from engram.testing.history.operation import Operation, Outcome, to_line


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
    """See `Client`. Commands and queries are recorded; read models, watched queries and events are not."""

    def __init__(self, url: str, app: App, recorder: Recorder, **how: Any) -> None:
        super().__init__(url, app, **how)
        self._recorder = recorder

    async def _post(self, path: str, parameters: dict[str, str], body: str, headers: dict[str, str]) -> dict[str, Any]:
        kinds: dict[str, Literal["command", "query"]] = {"commands": "command", "queries": "query"}
        kind, name = path.rsplit("/", 2)[1:]
        session = headers.get("Engram-Session")
        number = self._recorder.begin(
            kind=kinds[kind],
            key=parameters["key"],
            name=name,
            body=body,
            id=None if session is None else (session, int(headers["Engram-Sequence"])),
            idempotency_key=headers.get("Idempotency-Key"),
        )
        outcome: Outcome = "unknown"
        about: dict[str, Any] = {}
        try:
            content = await super()._post(path, parameters, body, headers)
            outcome = "logged" if kind == "commands" and "reply" not in content else "replied"
            about = {"position": Position.parse(content["position"]), "result": content.get("reply", None)}
            if kind == "queries":
                about["result"] = content["answer"]
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
            self._recorder.end(number, outcome, token="" if self.token is None else str(self.token), **about)
        return content
