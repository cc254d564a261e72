"""The HTTP door: routes made from the app's own types. Everything else is `Service`."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from engram.errors import EngramError, Misuse
from engram.image.outcome import Verdict
from engram.model.app import entity_of
from engram.model.command import Command
from engram.model.position import Position
from engram.model.query import Query
from engram.serving.openapi import describe
from engram.serving.problems import of_error, of_validation, problem, unknown
from engram.serving.service import CommandId, Service

BODY_BYTES = 1024 * 1024
MAX_SECONDS = 60.0
DEFAULT_SECONDS = 10.0
_SESSION = re.compile(r"[A-Za-z0-9._-]{1,64}")
_IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"]
_COMMAND_PARAMETERS = {"key", "wait", "timeout"}
_QUERY_PARAMETERS = {"key", "at_least", "timeout"}

Endpoint = Callable[[Request], Awaitable[Response]]


class _TooLarge(Exception):
    pass


def build_gateway(service: Service) -> FastAPI:
    """The ASGI application for one app's service."""
    app = service.app
    api: FastAPI = FastAPIOffline(title=f"{app.name}, on Engram", version=str(app.version))
    base = f"/api/{app.name}"
    for name, command in app.commands.items():
        entity = entity_of(command).__engram__.name
        api.add_route(f"{base}/{entity}/commands/{name}", _guard(_command(service, command)), methods=["POST"])
    for name, query in app.queries.items():
        entity = entity_of(query).__engram__.name
        api.add_route(f"{base}/{entity}/queries/{name}", _guard(_query(service, query)), methods=["GET", "POST"])
    api.add_route("/api", _guard(_apps(service)), methods=["GET"])
    api.add_route(base, _guard(_status(service)), methods=["GET"])
    api.add_route("/health", _guard(_health(service)), methods=["GET"])
    api.add_route("/", _home, methods=["GET"], include_in_schema=False)
    api.add_route("/{path:path}", _guard(_near_misses(service)), methods=_METHODS)
    api.openapi = lambda: describe(app)  # type: ignore[method-assign]  # FastAPI's documented way
    return api


def _guard(endpoint: Endpoint) -> Endpoint:
    async def guarded(request: Request) -> Response:
        try:
            return await endpoint(request)
        except _TooLarge:
            return problem(413, "too_large", f"The body is larger than {BODY_BYTES:,} bytes.")
        except ValidationError as error:
            return of_validation(error)
        except EngramError as error:
            return of_error(error)

    return guarded


def _command(service: Service, cls: type[Command[Any, Any]]) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        parameters = _parameters(request, _COMMAND_PARAMETERS)
        wait = parameters.get("wait", "reply")
        if wait not in ("reply", "log"):
            raise Misuse(f"wait={wait} is not known: write wait=reply or wait=log.")
        key, seconds = parameters.get("key", ""), _seconds(parameters)
        command_id, idempotency_key = _command_id(request), _idempotency_key(request)
        command = cls.__pydantic_validator__.validate_json(await _body(request) or b"{}")
        if wait == "log":
            position = await service.submit(key, command, command_id=command_id, idempotency_key=idempotency_key)
            return _json(202, b'{"position":"%s"}' % str(position).encode(), position)
        position, outcome = await service.send(
            key, command, command_id=command_id, idempotency_key=idempotency_key, seconds=seconds
        )
        if outcome.verdict is Verdict.REPLY:
            return _json(200, b'{"reply":%s,"position":"%s"}' % (outcome.body, str(position).encode()), position)
        assert outcome.error is not None
        response = of_error(outcome.error, position=str(position))
        response.headers["Engram-Position"] = str(position)
        return response

    return endpoint


def _query(service: Service, cls: type[Query[Any, Any]]) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        if request.method == "GET":
            parameters = _parameters(request, _QUERY_PARAMETERS | set(cls.model_fields))
            fields = {name: parameters[name] for name in cls.model_fields if name in parameters}
            query = cls.model_validate_strings(fields)
        else:
            parameters = _parameters(request, _QUERY_PARAMETERS)
            query = cls.__pydantic_validator__.validate_json(await _body(request) or b"{}")
        token = parameters.get("at_least", request.headers.get("engram-at-least", ""))
        at_least = [Position.parse(part) for part in token.split(",") if part]
        answer = await service.ask(parameters.get("key", ""), query, at_least=at_least, seconds=_seconds(parameters))
        position = Position(answer.partition, answer.offset, answer.index)
        return _json(200, b'{"answer":%s,"position":"%s"}' % (answer.body, str(position).encode()), position)

    return endpoint


def _apps(service: Service) -> Endpoint:
    async def endpoint(_request: Request) -> Response:
        app = service.app
        content = {
            "app": app.name,
            "version": app.version,
            "commands": {name: entity_of(cls).__engram__.name for name, cls in app.commands.items()},
            "queries": {name: entity_of(cls).__engram__.name for name, cls in app.queries.items()},
        }
        return _json(200, json.dumps([content]).encode())

    return endpoint


def _status(service: Service) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        digests = request.query_params.get("digests", "false") == "true"
        shards = await service.report(digests=True, seconds=MAX_SECONDS) if digests else service.registry.shards()
        content = {
            "app": service.app.name,
            "version": service.app.version,
            "partitions": service.log.partitions,
            "shards": [shard.model_dump() for shard in shards],
        }
        return _json(200, json.dumps(content).encode())

    return endpoint


def _health(service: Service) -> Endpoint:
    async def endpoint(_request: Request) -> Response:
        away = [p for p in range(service.log.partitions) if service.registry.lookup(p) is None]
        if away:
            return problem(
                503,
                "not_ready",
                f"{len(away)} of {service.log.partitions} partitions are not served.",
                partitions=away,
            )
        return _json(200, b'{"status":"ok"}')

    return endpoint


async def _home(_request: Request) -> Response:
    return RedirectResponse("/docs")


def _near_misses(service: Service) -> Endpoint:
    """Whatever no route has matched: says which part of the path is unknown."""
    app = service.app
    places: dict[str, dict[str, str]] = {
        "commands": {name: entity_of(cls).__engram__.name or "" for name, cls in app.commands.items()},
        "queries": {name: entity_of(cls).__engram__.name or "" for name, cls in app.queries.items()},
    }

    async def endpoint(request: Request) -> Response:
        head, name, entity, kind, last = [*request.path_params["path"].split("/"), "", "", "", "", ""][:5]
        if head != "api" or (kind not in places and entity in app.entities and name == app.name):
            return problem(404, "unknown_path", f"There is nothing at {request.url.path}. See /docs.")
        if name != app.name:
            return unknown("app", name, [app.name])
        if entity not in app.entities:
            return unknown("entity", entity, list(app.entities))
        of_entity = [n for n, of in places[kind].items() if of == entity]
        if last not in of_entity:
            return unknown("command" if kind == "commands" else "query", last, of_entity)
        allowed = ["POST"] if kind == "commands" else ["GET", "POST"]
        wrong = f"{request.method} is not for {request.url.path}: use {' or '.join(allowed)}."
        response = problem(405, "wrong_method", wrong)
        response.headers["Allow"] = ", ".join(allowed)
        return response

    return endpoint


def _parameters(request: Request, known: set[str]) -> dict[str, str]:
    parameters = dict(request.query_params)
    strange = sorted(parameters.keys() - known)
    if strange:
        raise Misuse(f"Unknown parameter {', '.join(strange)}: there are {', '.join(sorted(known))}.")
    return parameters


def _seconds(parameters: dict[str, str]) -> float:
    text = parameters.get("timeout", str(DEFAULT_SECONDS))
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MAX_SECONDS:
        raise Misuse(f"timeout={text} is not a number of seconds from 0 to {MAX_SECONDS:g}.")
    return seconds


def _command_id(request: Request) -> CommandId | None:
    session, sequence = request.headers.get("engram-session"), request.headers.get("engram-sequence")
    if session is None and sequence is None:
        return None
    if not _SESSION.fullmatch(session or "") or not re.fullmatch(r"\d{1,15}", sequence or ""):
        raise Misuse(
            "Engram-Session (1 to 64 letters, digits, '.', '_' or '-') and Engram-Sequence (a whole number) "
            "go together."
        )
    return CommandId(str(session), int(str(sequence)))


def _idempotency_key(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is not None and not _IDEMPOTENCY_KEY.fullmatch(key):
        raise Misuse("Idempotency-Key must be 1 to 255 visible ASCII characters.")
    return key


async def _body(request: Request) -> bytes:
    """The body, read no further than the limit."""
    chunks = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > BODY_BYTES:
            raise _TooLarge
        chunks.append(chunk)
    return b"".join(chunks)


def _json(status: int, body: bytes, position: Position | None = None) -> Response:
    headers = {} if position is None else {"Engram-Position": str(position)}
    return Response(body, status, headers, media_type="application/json")
