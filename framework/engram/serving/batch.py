"""The body of a request with many commands: a JSON array, each entry read for itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from pydantic import ValidationError
from starlette.requests import Request

from engram.errors import Denied, EngramError, Misuse
from engram.model.app import App
from engram.model.principal import Principal
from engram.serving.commands import CommandId, Given
from engram.serving.guard import Guard
from engram.serving.parameters import BrokenJson, checked_idempotency_key, read_command_id
from engram.serving.problems import Problem, error_content, problem_content, unknown_content, validation_content

# A record of the log holds as many, and they take some milliseconds of a shard's time.
MAX_COMMANDS = 1000


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    command: str
    key: str = ""
    body: msgspec.Raw = msgspec.Raw(b"{}")
    idempotency_key: str | None = None


_entries = msgspec.json.Decoder(list[msgspec.Raw]).decode
_entry = msgspec.json.Decoder(_Entry).decode


class BatchReader:
    """Reads batches for one app. `checked_key` raises `Misuse` for a key that is none."""

    def __init__(self, app: App, checked_key: Callable[[str, type[Any]], str]) -> None:
        self._commands = app.commands
        self._checked_key = checked_key

    def split(self, body: bytes) -> list[msgspec.Raw]:
        """The entries, unread. Raises `Misuse` when they are none, too many, or no array."""
        try:
            entries = _entries(body)
        except msgspec.ValidationError:
            raise Misuse("The body is no array: write one, with an object for each command.") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            raise BrokenJson(str(problem)) from None
        if not 1 <= len(entries) <= MAX_COMMANDS:
            raise Misuse(f"There are {len(entries):,} commands in the request: write 1 to {MAX_COMMANDS:,}.")
        return entries

    def read(self, entries: Sequence[msgspec.Raw], request: Request, guard: Guard) -> list[Given | Problem]:
        """Each entry as a command that whoever has sent the request may send, or as what is wrong with it.

        With `Engram-Session` and `Engram-Sequence` the entry at place 3 is the command of that number in the session
        `NAME.3`: so every one of them gets its first reply again when the batch is sent again as it was.
        """
        principal: Principal | None = request.state.principal
        if "idempotency-key" in request.headers:
            raise Misuse("Of many commands each has an idempotency_key of its own, in its entry.")
        batch = read_command_id(request, principal)
        found: list[Given | Problem] = []
        for place, entry in enumerate(entries):
            id_ = None if batch is None else CommandId(f"{batch.session}.{place}", batch.sequence)
            try:
                found.append(self._read(entry, id_, principal, guard))
            except (msgspec.DecodeError, UnicodeDecodeError) as problem:
                found.append(problem_content(422, "invalid_fields", f"The entry does not fit: {problem}."))
            except ValidationError as problem:
                found.append(validation_content(problem))
            except Denied as problem:
                found.append(error_content(guard.refusal(problem, request)))
            except EngramError as problem:
                found.append(error_content(problem))
        return found

    def _read(
        self, raw: msgspec.Raw, id_: CommandId | None, principal: Principal | None, guard: Guard
    ) -> Given | Problem:
        entry = _entry(raw)
        cls = self._commands.get(entry.command)
        if cls is None:
            return unknown_content("command", entry.command, list(self._commands))
        command = cls.__pydantic_validator__.validate_json(bytes(entry.body))
        key = self._checked_key(entry.key, cls)
        guard.check(principal, command, key)
        return Given(key, command, id_, checked_idempotency_key(entry.idempotency_key, principal))
