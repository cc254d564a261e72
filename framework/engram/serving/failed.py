"""Failed commands as they look from outside: the forms of the quarantine's API, for the gateway and the client."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, WithJsonSchema

from engram.image.outcome import Verdict
from engram.model.position import Position
from engram.model.version import Version


def _position(value: Any) -> Any:
    return Position.parse(value) if isinstance(value, str) else value


PositionText = Annotated[
    Position,
    BeforeValidator(_position),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string", "examples": ["3:1042.0"]}),
]


class _Form(BaseModel):
    model_config = ConfigDict(frozen=True)


class FailedCommand(_Form):
    """A command in quarantine: whose handler raised something that is not `Rejected`, and that left no trace.

    `failures` is more than 1 when it was retried. The command of a record that could not be decoded has no name, no
    entity and no key.
    """

    position: PositionText
    command: str
    entity: str
    key: str
    time: datetime
    error: str
    failures: int


class FailedCommandDetail(FailedCommand):
    """The same with its fields, as its version has them, and the traceback; `body` is None if they are not known."""

    version: Version
    body: Any
    traceback: str


class NotServed(_Form):
    """A partition that could not be asked, and why."""

    partition: int
    problem: str


class FailedCommands(_Form):
    """Failed commands, newest first. `listed` is how many there are in all, of `count` that have failed since the
    beginning: the others were retried or dropped, or came when the list of their partition was full.

    Those of `not_served` are in neither.
    """

    count: int
    listed: int
    rows: list[FailedCommand]
    not_served: list[NotServed]


class Retried(_Form):
    """What became of a command that was sent again, as a new command at `position`.

    A rejection has `code` and `error`, a quarantine `error` and `failures`: it is on the list again, with its new
    position.
    """

    position: PositionText
    outcome: Verdict
    reply: Any = None
    code: str = ""
    error: str = ""
    failures: int = 0


class Dropped(_Form):
    """A command is off the list since the record at `position`."""

    position: PositionText
