"""Problems of a gateway, as the exceptions that they stand for."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from engram.errors import (
    Ahead,
    Behind,
    Corrupt,
    Denied,
    EngramError,
    Foreign,
    Gap,
    Misuse,
    Quarantined,
    Rejected,
    Unauthenticated,
    Unavailable,
    Unsettled,
)

T = TypeVar("T")

_ERRORS: dict[str, type[EngramError]] = {
    "quarantined": Quarantined,
    "denied": Denied,
    "unauthenticated": Unauthenticated,
    "stopped": Corrupt,
    "foreign": Foreign,
    "unsettled": Unsettled,
}
_WITH_GAP = {"behind": Behind, "ahead": Ahead}


def content_of(status: int, body: bytes) -> dict[str, Any]:
    """The body of a success; raises the exception that a problem stands for otherwise."""
    return read_success(status, body, json.loads)


def read_success(status: int, body: bytes, read: Callable[[bytes], T]) -> T:
    """What `read` makes of the body of a success; raises the exception that a problem stands for otherwise."""
    try:
        if status < 400:
            return read(body)
        error = error_of(json.loads(body))
    except (ValueError, KeyError, IndexError, TypeError):
        raise Unavailable(f"The gateway answered {status}: {body[:200].decode(errors='replace')}") from None
    raise error


def error_of(problem: dict[str, Any]) -> EngramError:
    """Raises `KeyError`, `IndexError` or `TypeError` for what is no problem of ours."""
    kind, detail, status = problem["type"].rsplit(":", 1)[1], problem["detail"], problem["status"]
    if kind == "rejected":
        return Rejected(problem["code"], detail if detail != problem["code"] else "")
    if kind in _WITH_GAP:
        return _WITH_GAP[kind](detail, _gap(problem))
    if kind in _ERRORS:
        return _ERRORS[kind](detail)
    return Unavailable(detail) if status >= 500 or status == 429 else Misuse(detail)


def _gap(problem: dict[str, Any]) -> Gap | None:
    return Gap(*(problem[name] for name in Gap._fields)) if set(Gap._fields) <= problem.keys() else None
