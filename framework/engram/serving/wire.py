"""Requests and responses as frames: a tag, a JSON header, and bodies that are JSON already. Never pickle."""

from __future__ import annotations

import json
from typing import Any

from pydantic import TypeAdapter

from engram.errors import Corrupt
from engram.image.outcome import Outcome, Verdict
from engram.shard.requests import (
    Answer,
    Ask,
    Await,
    Refusal,
    Replies,
    Report,
    Reported,
    Request,
    Response,
    ShardStatus,
    Stop,
)

Frames = list[bytes]

_ASK = TypeAdapter(tuple[int, int, str, str, int, tuple[int, int] | None, int])
_AWAIT = TypeAdapter(tuple[int, int, list[tuple[int, str, int]]])
_REPORT = TypeAdapter(tuple[int, bool])
_STOP = TypeAdapter(tuple[bool])
_ANSWER = TypeAdapter(tuple[int, int, int, int])
_REFUSAL = TypeAdapter(tuple[int, str, str, str])
_REPLIES = TypeAdapter(tuple[int, int, list[Verdict], list[int] | None])
_REPORTED = TypeAdapter(tuple[int])


def encode_request(request: Request) -> Frames:
    match request:
        case Ask():
            head = [request.id, request.partition, request.key, request.query, request.version]
            return [b"ask", _dump([*head, request.at_least, request.timeout_ms]), request.body]
        case Await():
            return [b"await", _dump([request.partition, request.offset, request.commands])]
        case Report():
            return [b"report", _dump([request.id, request.digests])]
        case Stop():
            return [b"stop", _dump([request.clean])]


def decode_request(frames: Frames) -> Request:
    """Raises `Corrupt` for anything that `encode_request` does not make."""
    try:
        tag, head, *bodies = frames
        match tag:
            case b"ask":
                id_, partition, key, query, version, at_least, timeout_ms = _ASK.validate_json(head, strict=True)
                return Ask(id_, partition, key, query, version, bodies[0], at_least, timeout_ms)
            case b"await":
                return Await(*_AWAIT.validate_json(head, strict=True))
            case b"report":
                return Report(*_REPORT.validate_json(head, strict=True))
            case b"stop":
                return Stop(*_STOP.validate_json(head, strict=True))
    except (ValueError, IndexError) as problem:
        raise Corrupt(f"Not a request: {problem!r}") from problem
    raise Corrupt(f"Not a request: {tag!r}")


def encode_response(response: Response) -> Frames:
    match response:
        case Answer():
            place = [response.id, response.partition, response.offset, response.index]
            return [b"answer", _dump(place), response.body]
        case Refusal():
            return [b"refusal", _dump([response.id, response.kind, response.text, response.code])]
        case Replies():
            verdicts = [o.verdict.value for o in response.outcomes]
            head = [response.partition, response.offset, verdicts, response.indices]
            # JSON without line breaks inside, so that lines keep the bodies apart.
            return [b"replies", _dump(head), b"\n".join(o.body for o in response.outcomes)]
        case Reported():
            return [b"reported", _dump([response.id]), response.status.model_dump_json().encode()]


def decode_response(frames: Frames) -> Response:
    """Raises `Corrupt` for anything that `encode_response` does not make."""
    try:
        tag, head, *bodies = frames
        match tag:
            case b"answer":
                id_, partition, offset, index = _ANSWER.validate_json(head, strict=True)
                return Answer(id_, partition, offset, index, bodies[0])
            case b"refusal":
                return Refusal(*_REFUSAL.validate_json(head, strict=True))
            case b"replies":
                partition, offset, verdicts, indices = _REPLIES.validate_json(head, strict=True)
                pairs = zip(verdicts, bodies[0].split(b"\n"), strict=True)
                outcomes = [Outcome(verdict, body) for verdict, body in pairs]
                return Replies(partition, offset, outcomes, indices)
            case b"reported":
                (id_,) = _REPORTED.validate_json(head, strict=True)
                return Reported(id_, ShardStatus.model_validate_json(bodies[0]))
    except (ValueError, IndexError) as problem:
        raise Corrupt(f"Not a response: {problem!r}") from problem
    raise Corrupt(f"Not a response: {tag!r}")


def _dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
