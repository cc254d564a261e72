"""What a request says besides its path, checked; and the plain form of a response."""

from __future__ import annotations

import re

from starlette.requests import Request
from starlette.responses import Response

from engram.errors import Misuse
from engram.model.position import Position
from engram.model.principal import Principal
from engram.serving.commands import CommandId
from engram.serving.guard import scoped

MAX_SECONDS = 60.0
DEFAULT_SECONDS = 10.0
_SESSION = re.compile(r"[A-Za-z0-9._-]{1,64}")
_IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]{1,255}")


class TooLarge(Exception):
    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit


class BrokenJson(Exception):
    """A body that is not JSON."""


def read_parameters(request: Request, known: set[str]) -> dict[str, str]:
    parameters = dict(request.query_params)
    strange = sorted(parameters.keys() - known)
    if strange:
        raise Misuse(f"Unknown parameter {', '.join(strange)}: there are {', '.join(sorted(known))}.")
    return parameters


def read_seconds(parameters: dict[str, str]) -> float:
    return read_number(parameters, "timeout", DEFAULT_SECONDS, least=0, most=MAX_SECONDS)


def read_number(parameters: dict[str, str], name: str, default: float, *, least: float, most: float) -> float:
    """A parameter within bounds; a whole number where the default is one."""
    text = parameters.get(name, str(default))
    try:
        number = type(default)(text)
    except ValueError:
        number = least - 1
    if not least <= number <= most:
        what = "a whole number" if isinstance(default, int) else "a number of seconds"
        raise Misuse(f"{name}={text} is not {what} from {least:g} to {most:g}.")
    return number


def read_command_id(request: Request, principal: Principal | None) -> CommandId | None:
    session, sequence = request.headers.get("engram-session"), request.headers.get("engram-sequence")
    if session is None and sequence is None:
        return None
    if not _SESSION.fullmatch(session or "") or not re.fullmatch(r"\d{1,15}", sequence or ""):
        raise Misuse(
            "Engram-Session (1 to 64 letters, digits, '.', '_' or '-') and Engram-Sequence (a whole number) "
            "go together."
        )
    return CommandId(scoped(principal, str(session)), int(str(sequence)))


def read_idempotency_key(request: Request, principal: Principal | None) -> str | None:
    return checked_idempotency_key(request.headers.get("idempotency-key"), principal)


def checked_idempotency_key(key: str | None, principal: Principal | None) -> str | None:
    if key is not None and not _IDEMPOTENCY_KEY.fullmatch(key):
        raise Misuse("Idempotency-Key must be 1 to 255 visible ASCII characters.")
    return None if key is None else scoped(principal, key)


def read_wait(parameters: dict[str, str], *known: str) -> str:
    """Until when to wait: the first of those that are known, if nothing is said."""
    wait = parameters.get("wait", known[0])
    if wait not in known:
        listing = " or ".join([", ".join(f"wait={name}" for name in known[:-1]), f"wait={known[-1]}"])
        raise Misuse(f"wait={wait} is not known: write {listing}.")
    return wait


async def read_body(request: Request, limit: int) -> bytes:
    """The body, read no further than the limit."""
    chunks = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise TooLarge(limit)
        chunks.append(chunk)
    return b"".join(chunks)


def json_response(status: int, body: bytes, *positions: Position) -> Response:
    headers = {"Engram-Position": ",".join(map(str, positions))} if positions else {}
    return Response(body, status, headers, media_type="application/json")
