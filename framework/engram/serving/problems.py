"""Errors as HTTP: application/problem+json, with what to do in `detail`."""

from __future__ import annotations

import json
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError
from starlette.responses import Response

from engram.errors import (
    Ahead,
    Behind,
    Corrupt,
    Denied,
    EngramError,
    Foreign,
    Misuse,
    Quarantined,
    Rejected,
    Unauthenticated,
    Unavailable,
    Unsettled,
)

_STATUS: list[tuple[type[EngramError], int, str]] = [
    (Rejected, 409, "rejected"),
    (Unauthenticated, 401, "unauthenticated"),
    (Denied, 403, "denied"),
    (Quarantined, 500, "quarantined"),
    (Behind, 504, "behind"),
    (Unsettled, 504, "unsettled"),
    (Unavailable, 503, "unavailable"),
    (Corrupt, 503, "stopped"),
    (Ahead, 409, "ahead"),
    (Foreign, 400, "foreign"),
    (Misuse, 422, "misuse"),
]


Problem = dict[str, Any]
"""The content of a problem+json document."""


def problem_content(status: int, kind: str, detail: str, **more: Any) -> Problem:
    """`kind` is the last part of its type."""
    return {
        "type": f"urn:engram:{kind}",
        "title": kind.replace("_", " "),
        "status": status,
        "detail": detail,
        **more,
    }


def error_content(error: EngramError, **more: Any) -> Problem:
    for cls, status, kind in _STATUS:
        if isinstance(error, cls):
            if isinstance(error, Rejected):
                return problem_content(status, kind, error.text or error.code, code=error.code, **more)
            if isinstance(error, Ahead | Behind) and error.gap is not None:
                more |= error.gap._asdict()
            return problem_content(status, kind, str(error), **more)
    return problem_content(500, "error", str(error), **more)


def validation_content(error: ValidationError) -> Problem:
    """400 for what is not JSON, 422 with field paths for JSON that does not fit."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    if errors and errors[0]["type"] == "json_invalid":
        return problem_content(400, "broken_json", f"The body is not JSON: {errors[0]['msg']}.")
    found = [{"path": ".".join(map(str, e["loc"])) or "body", "message": e["msg"]} for e in errors]
    listing = "; ".join(f"{f['path']}: {f['message']}" for f in found)
    return problem_content(422, "invalid_fields", f"The body does not fit: {listing}.", errors=found)


def unknown_content(what: str, name: str, known: list[str]) -> Problem:
    """404 with the near misses."""
    near = get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"Did you mean {', '.join(near)}?" if near else f"There are: {', '.join(sorted(known)) or 'none'}."
    kind = what.replace(" ", "_")
    return problem_content(404, f"unknown_{kind}", f"There is no {what} named {name!r}. {hint}", near=near)


def written(content: Problem) -> bytes:
    return json.dumps(content, ensure_ascii=False).encode(errors="backslashreplace")


def responded(content: Problem) -> Response:
    headers = {"Retry-After": "1"} if content["status"] == 503 else {}
    return Response(written(content), content["status"], headers, media_type="application/problem+json")


def problem(status: int, kind: str, detail: str, **more: Any) -> Response:
    return responded(problem_content(status, kind, detail, **more))


def of_error(error: EngramError, **more: Any) -> Response:
    return responded(error_content(error, **more))


def of_validation(error: ValidationError) -> Response:
    return responded(validation_content(error))


def unknown(what: str, name: str, known: list[str]) -> Response:
    return responded(unknown_content(what, name, known))
