"""What many operations of the OpenAPI document have in common: parameters, headers, problems."""

from __future__ import annotations

from typing import Any

PROBLEM_REFERENCE = "#/components/schemas/Problem"


def problem(description: str) -> dict[str, Any]:
    schema = {"$ref": PROBLEM_REFERENCE}
    return {"description": description, "content": {"application/problem+json": {"schema": schema}}}


def parameter(name: str, where: str, description: str, *, required: bool = False, **schema: Any) -> dict[str, Any]:
    return {"name": name, "in": where, "required": required, "description": description, "schema": schema}


KEY = parameter("key", "query", "The entity.", required=True, type="string", minLength=1, maxLength=1024)
WAIT = parameter(
    "wait", "query", "Until when to wait: `effects` is until all messages that it led to are handled.",
    type="string", enum=["reply", "log", "effects"], default="reply",
)  # fmt: skip
TIMEOUT = parameter("timeout", "query", "Seconds to wait.", type="number", minimum=0, maximum=60, default=10)
AT_LEAST = parameter(
    "at_least", "query", "Tokens and positions that the answer must include, with commas.", type="string"
)
AFTER = parameter(
    "after", "query", "A cursor; `start` for all events, `end` for those of commands from now on.",
    type="string", default="start",
)  # fmt: skip
NAME = parameter("name", "query", "Only events of this name; may be repeated.", type="array", items={"type": "string"})
LIMIT = parameter("limit", "query", "How many events.", type="integer", minimum=1, maximum=1000, default=100)
WAIT_FOR_EVENTS = parameter(
    "wait", "query", "Seconds to wait while there are none.", type="number", minimum=0, maximum=60, default=0
)
PAGE_LIMIT = parameter("limit", "query", "How many rows.", type="integer", minimum=1, maximum=10_000, default=100)
CURSOR = parameter("cursor", "query", "Go on after the rows that came with it.", type="string")
LAST_EVENT_ID = parameter("Last-Event-ID", "header", "For a stream: instead of `after`.", type="string")
LAST_ANSWER_ID = parameter("Last-Event-ID", "header", "For a stream: the last event that was seen.", type="string")
ROWS = parameter("limit", "query", "How many commands.", type="integer", minimum=1, maximum=10_000, default=100)
POSITION = parameter(
    "position", "path", "Where the command is in the log.", required=True,
    type="string", pattern=r"^[0-9]{1,5}:[0-9]{1,15}\.-?[0-9]{1,9}$", examples=["3:1042.0"],
)  # fmt: skip
SAVEPOINT = parameter(
    "savepoint", "query", "Its name: it is kept, and is whole.", type="string", pattern="^[A-Za-z0-9._-]{1,64}$"
)
PARTITION = parameter("partition", "query", "Only of this one.", type="integer", minimum=0)
SNAPSHOT_TIMEOUT = parameter(
    "timeout", "query", "Seconds to wait.", type="number", minimum=0, maximum=3600, default=600
)
IDEMPOTENCY = parameter(
    "Idempotency-Key",
    "header",
    "The same key again gives the first reply again.",
    type="string",
    pattern="^[!-~]{1,255}$",
)
SESSION = parameter(
    "Engram-Session", "header", "The client's session, with Engram-Sequence.",
    type="string", pattern="^[A-Za-z0-9._-]{1,64}$",
)  # fmt: skip
SEQUENCE = parameter(
    "Engram-Sequence", "header", "Growing numbers within the session.",
    type="integer", minimum=0, maximum=999_999_999_999_999,
)  # fmt: skip
HEADERS = {
    "Engram-Token": {"description": "For `at_least` of later queries; tokens merge.", "schema": {"type": "string"}},
    "Engram-Position": {"description": "The same as `position`.", "schema": {"type": "string"}},
}
COMMON = {
    "400": problem("The body is not JSON, or a token is not whole or of another app."),
    "413": problem("The body is too large."),
    "422": problem("A field, the key or a parameter does not fit: `errors` has the paths."),
    "503": problem("Not now; try again."),
}
NOT_KNOWN = {"503": problem("Nobody can tell now whose token it is: try again.")}
REFUSALS = {
    "401": problem("There is no token where one is needed, or it is not good: `WWW-Authenticate`."),
    "403": problem("Whoever has the token may not."),
    "429": problem("Too many requests: `Retry-After` says when the next one fits."),
}
PROBLEM = {
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "errors": {"type": "array", "items": {"type": "object"}},
        "partition": {"type": "integer"},
        "at": {"type": "integer", "description": "The last record that is there."},
        "asked_for": {"type": "integer"},
    },
    "required": ["type", "title", "status", "detail"],
}
