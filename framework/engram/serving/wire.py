"""Requests and responses as frames: a tag, a header, and bodies that are JSON already. Never pickle.

The header is JSON, but for queries and answers: see `engram.serving.heads`."""

from __future__ import annotations

import json
import struct
from typing import Any

from pydantic import TypeAdapter

from engram.errors import Corrupt
from engram.image.outcome import Outcome, Verdict
from engram.model.principal import Principal
from engram.model.version import Version
from engram.serving.heads import Who, principal_of, read_answer, read_ask, who_of, write_answer, write_ask
from engram.shard.requests import (
    Answer,
    Arrived,
    Ask,
    AskEffects,
    AskQuarantine,
    Await,
    Changed,
    Look,
    Refusal,
    Replies,
    Report,
    Reported,
    Request,
    Response,
    ShardStatus,
    Stop,
    Subscribe,
    SubscribeRows,
    TakeSnapshot,
)

Frames = list[bytes]

_QUARANTINE = TypeAdapter(tuple[int, int, tuple[int, int] | None, int, tuple[int, int] | None, int])
_LOOK = TypeAdapter(tuple[int, int, str, str, tuple[int | float, str, str] | None, int, tuple[int, int] | None, int])
_EFFECTS = TypeAdapter(tuple[int, int, tuple[int, int] | None, list[str], list[Arrived], int])
_SUBSCRIBE_ROWS = TypeAdapter(tuple[int, int, str, str, int, int, int | None, bool])
_SUBSCRIBE = TypeAdapter(tuple[int, int, str, str, Version, int, int | None, Who | None])
_AWAIT = TypeAdapter(tuple[int, int, list[tuple[int, str, int]]])
_REPORT = TypeAdapter(tuple[int, bool])
_TAKE = TypeAdapter(tuple[int, int, str, int])
_STOP = TypeAdapter(tuple[bool, str])
_CHANGED = TypeAdapter(tuple[int, int, int, int, str, int | None])
_REFUSAL = TypeAdapter(tuple[int, str, str, str, int | None])
_REPLIES = TypeAdapter(tuple[int, int, list[Verdict], list[int] | None])
_REPORTED = TypeAdapter(tuple[int])


def _who(principal: Principal | None) -> list[Any] | None:
    return None if principal is None else who_of(principal)


def _principal(who: Who | None) -> Principal | None:
    return None if who is None else principal_of(who)


def encode_request(request: Request) -> Frames:  # noqa: C901, PLR0911 - one for each kind
    head: list[Any]
    match request:
        case Ask():
            return [b"ask", write_ask(request), request.body]
        case AskQuarantine():
            head = [request.id, request.partition, request.place, request.limit]
            return [b"quarantine", _dump([*head, request.at_least, request.timeout_ms])]
        case Look():
            head = [request.id, request.partition, request.model, request.place, request.after, request.limit]
            return [b"look", _dump([*head, request.at_least, request.timeout_ms])]
        case AskEffects():
            head = [request.id, request.partition, request.command, request.roots, request.arrived, request.timeout_ms]
            return [b"effects", _dump(head)]
        case Subscribe():
            head = [request.id, request.partition, request.key, request.query, request.version, request.lease_ms]
            return [b"subscribe", _dump([*head, request.after, _who(request.principal)]), request.body]
        case SubscribeRows():
            head = [request.id, request.partition, request.model, request.place, request.limit, request.lease_ms]
            return [b"rows", _dump([*head, request.after, request.base])]
        case Await():
            return [b"await", _dump([request.partition, request.offset, request.commands])]
        case Report():
            return [b"report", _dump([request.id, request.digests])]
        case TakeSnapshot():
            return [b"take", _dump([request.id, request.partition, request.savepoint, request.timeout_ms])]
        case Stop():
            return [b"stop", _dump([request.clean, request.savepoint])]


def decode_request(frames: Frames) -> Request:  # noqa: C901, PLR0911 - one for each kind
    """Raises `Corrupt` for anything that `encode_request` does not make."""
    try:
        tag, head, *bodies = frames
        match tag:
            case b"ask":
                return read_ask(head, bodies[0])
            case b"quarantine":
                return AskQuarantine(*_QUARANTINE.validate_json(head, strict=True))
            case b"look":
                return Look(*_LOOK.validate_json(head, strict=True))
            case b"effects":
                return AskEffects(*_EFFECTS.validate_json(head, strict=True))
            case b"subscribe":
                id_, partition, key, query, version, lease_ms, after, who = _SUBSCRIBE.validate_json(head, strict=True)
                return Subscribe(id_, partition, key, query, version, bodies[0], _principal(who), lease_ms, after)
            case b"rows":
                return SubscribeRows(*_SUBSCRIBE_ROWS.validate_json(head, strict=True))
            case b"await":
                return Await(*_AWAIT.validate_json(head, strict=True))
            case b"report":
                return Report(*_REPORT.validate_json(head, strict=True))
            case b"take":
                return TakeSnapshot(*_TAKE.validate_json(head, strict=True))
            case b"stop":
                return Stop(*_STOP.validate_json(head, strict=True))
    except (ValueError, IndexError, struct.error) as problem:
        raise Corrupt(f"Not a request: {problem!r}") from problem
    raise Corrupt(f"Not a request: {tag!r}")


def encode_response(response: Response) -> Frames:
    match response:
        case Answer():
            return [b"answer", write_answer(response), response.body]
        case Changed():
            head = [response.id, response.partition, response.offset, response.index, response.kind, response.since]
            return [b"changed", _dump(head), response.body]
        case Refusal():
            return [b"refusal", _dump([response.id, response.kind, response.text, response.code, response.at])]
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
                return read_answer(head, bodies[0])
            case b"changed":
                id_, partition, offset, index, kind, since = _CHANGED.validate_json(head, strict=True)
                return Changed(id_, partition, offset, index, kind, bodies[0], since)
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
    except (ValueError, IndexError, struct.error) as problem:
        raise Corrupt(f"Not a response: {problem!r}") from problem
    raise Corrupt(f"Not a response: {tag!r}")


def _dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
