"""Requests and responses as frames: a tag, a JSON header, and bodies that are JSON already. Never pickle."""

from __future__ import annotations

import json
from typing import Any

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
        values = json.loads(head)
        match tag:
            case b"ask":
                *fields, at_least, timeout_ms = values
                return Ask(*fields, bodies[0], None if at_least is None else (at_least[0], at_least[1]), timeout_ms)
            case b"await":
                partition, offset, commands = values
                return Await(partition, offset, [(i, session, sequence) for i, session, sequence in commands])
            case b"report":
                return Report(*values)
            case b"stop":
                return Stop(*values)
    except (ValueError, TypeError, IndexError, KeyError) as problem:
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
        values = json.loads(head)
        match tag:
            case b"answer":
                return Answer(*values, bodies[0])
            case b"refusal":
                return Refusal(*values)
            case b"replies":
                partition, offset, verdicts, indices = values
                pairs = zip(verdicts, bodies[0].split(b"\n"), strict=True)
                return Replies(partition, offset, [Outcome(Verdict(verdict), body) for verdict, body in pairs], indices)
            case b"reported":
                return Reported(*values, ShardStatus.model_validate_json(bodies[0]))
    except (ValueError, TypeError, IndexError, KeyError) as problem:
        raise Corrupt(f"Not a response: {problem!r}") from problem
    raise Corrupt(f"Not a response: {tag!r}")


def _dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
