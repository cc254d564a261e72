"""The HTTP door: routes made from the app's own types. Everything else is `Service`."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from engram.errors import Ahead, Denied, EngramError, Misuse
from engram.log.cursor import START
from engram.model.app import entity_of
from engram.model.position import Position
from engram.model.principal import Rule
from engram.model.query import Query
from engram.model.read_model import ReadModel, Tally, place_of
from engram.model.token import Token
from engram.serving.access import Access
from engram.serving.bounds import Bounds
from engram.serving.command_routes import many_commands, one_command
from engram.serving.events import MAX_PAGE_EVENTS, PAGE_EVENTS
from engram.serving.exact import ExactPaths
from engram.serving.failed import Dropped, FailedCommandDetail, Retried
from engram.serving.guard import EVERYBODY, OPERATORS, Endpoint, Guard
from engram.serving.metrics import Metrics
from engram.serving.near_misses import near_misses
from engram.serving.openapi import describe
from engram.serving.parameters import (
    MAX_SECONDS,
    BrokenJson,
    TooLarge,
    json_response,
    read_body,
    read_number,
    read_parameters,
    read_seconds,
)
from engram.serving.problems import of_error, of_validation, problem
from engram.serving.quarantine import LISTED_ROWS, MAX_LISTED_ROWS
from engram.serving.read_models import MAX_PAGE_ROWS, MAX_WATCHED_ROWS, PAGE_ROWS, RowsPage, TotalsFound, Wanted
from engram.serving.service import Service
from engram.shard.requests import Answer

_METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"]
_QUERY_PARAMETERS = {"key", "at_least", "timeout"}
_STREAM_PARAMETERS = {"after", "name"}
_SNAPSHOT_SECONDS = 600.0
_MAX_SNAPSHOT_SECONDS = 3600.0
_PAGE_PARAMETERS = {"after", "name", "limit", "wait"}


def build_gateway(service: Service, access: Access | None = None) -> FastAPI:
    """The ASGI application for one app's service; with `access`, only those come in whom it knows."""
    app = service.app
    guard = Guard(access, app=app.name, metrics=service.metrics)
    # Newer FastAPIs make spans of their own: two of each request would be one too many, and older ones make none.
    alone = {"tracing": False}
    api: FastAPI = FastAPIOffline(title=f"{app.name}, on Engram", version=str(app.version), telemetry=alone)
    exact: dict[tuple[str, str], Endpoint] = {}
    api.add_middleware(ExactPaths, table=exact)
    base = f"/api/{app.name}"

    def route(
        path: str, endpoint: Endpoint, *methods: str, rule: Rule | None, always: bool = False, name: str = ""
    ) -> None:
        guarded = guard.before(_answered(endpoint), rule, always=always)
        measured = _measured(service.metrics, name or path, guarded)
        whole = service.spans.request(name or path, measured)
        api.add_route(path, whole, methods=list(methods))
        if "{" not in path:
            exact.update(((method, path), whole) for method in methods)

    for name, command in app.commands.items():
        path = f"{base}/{entity_of(command).__engram__.name}/commands/{name}"
        route(path, one_command(service, guard, command), "POST", rule=EVERYBODY)
    route(f"{base}/commands", many_commands(service, guard), "POST", rule=EVERYBODY)
    for name, query in app.queries.items():
        path = f"{base}/{entity_of(query).__engram__.name}/queries/{name}"
        route(path, _query(service, guard, query), "GET", "POST", rule=EVERYBODY)
    for name, model in app.read_models.items():
        route(f"{base}/read_models/{name}", _read_model(service, guard, model), "GET", rule=EVERYBODY)
    route(base, _status(service), "GET", rule=OPERATORS)
    route(f"{base}/events", _events(service, guard), "GET", rule=OPERATORS)
    route(f"{base}/quarantine", _quarantine(service), "GET", rule=OPERATORS)
    route(f"{base}/quarantine/{{position}}", _quarantine_row(service), "GET", "DELETE", rule=OPERATORS)
    route(f"{base}/quarantine/{{position}}/retry", _retry(service), "POST", rule=OPERATORS)
    route(f"{base}/snapshots", _snapshots(service), "POST", rule=OPERATORS)
    route(f"{base}/stop", _stop(service), "POST", rule=OPERATORS)
    route("/metrics", _metrics(service), "GET", rule=OPERATORS, always=True)
    # What the app is, not what is in it: whoever may send commands must know their names.
    route("/api", _apps(service), "GET", rule=None)
    route("/health", _health(service), "GET", rule=None, always=True)
    api.add_route("/", _home, methods=["GET"], include_in_schema=False)
    route("/{path:path}", near_misses(service), *_METHODS, rule=None, name="unknown")
    api.openapi = lambda: describe(app, closed=guard.closed)  # type: ignore[method-assign]  # FastAPI's documented way
    return api


def _measured(metrics: Metrics, route: str, endpoint: Endpoint) -> Endpoint:
    async def measured(request: Request) -> Response:
        started = time.perf_counter()
        status = 500
        try:
            response = await endpoint(request)
            status = response.status_code
            return response
        finally:
            metrics.request(route, request.method, status, time.perf_counter() - started)

    return measured


def _answered(endpoint: Endpoint) -> Endpoint:
    async def answered(request: Request) -> Response:
        try:
            return await endpoint(request)
        except TooLarge as large:
            return problem(413, "too_large", f"The body is larger than {large.limit:,} bytes.")
        except BrokenJson as broken:
            return problem(400, "broken_json", f"The body is not JSON: {broken}.")
        except ValidationError as error:
            return of_validation(error)
        except Denied:
            raise  # the guard's business
        except EngramError as error:
            return of_error(error)

    return answered


def _query(service: Service, guard: Guard, cls: type[Query[Any, Any]]) -> Endpoint:
    bounds = Bounds(service.log)

    async def endpoint(request: Request) -> Response:
        if request.method == "GET":
            parameters = read_parameters(request, _QUERY_PARAMETERS | set(cls.model_fields))
            fields = {name: parameters[name] for name in cls.model_fields if name in parameters}
            query = cls.model_validate_strings(fields)
        else:
            parameters = read_parameters(request, _QUERY_PARAMETERS)
            query = cls.__pydantic_validator__.validate_json(await read_body(request, guard.body_bytes) or b"{}")
        key = service.checked_key(parameters.get("key", ""), query)
        principal = request.state.principal
        guard.check(principal, query, key)
        seconds = read_seconds(parameters)
        bound = bounds.asked(request, parameters.get("at_least"))
        last = request.headers.get("last-event-id") or None
        streamed = _streamed(request)

        async def found(at_least: Token) -> Answer | AsyncGenerator[bytes]:
            how: dict[str, Any] = {"at_least": at_least, "seconds": seconds, "principal": principal}
            return await (
                service.subscribe(key, query, last=last, **how) if streamed else service.ask(key, query, **how)
            )

        try:
            answer = await found(bound.token)
        except Ahead:
            if bound.explicit or last is not None:
                raise
            bound = bound._replace(token=bounds.of())
            answer = await found(bound.token)
        if not isinstance(answer, Answer):
            return guard.stream(request, answer)
        position = Position(answer.partition, answer.offset, answer.index)
        response = json_response(200, b'{"answer":%s,"position":"%s"}' % (answer.body, position.written()), position)
        return bounds.carry(request, response, bounds.of(position), kept=bound.explicit or bool(bound.token.offsets))

    return endpoint


def _read_model(service: Service, guard: Guard, cls: type[ReadModel]) -> Endpoint:
    bounds = Bounds(service.log)
    place_name, model = place_of(cls), cls()
    paged: set[str] = set() if issubclass(cls, Tally) else {"limit", "cursor"}
    known = {place_name, "at_least", "timeout"} | paged

    async def endpoint(request: Request) -> Response:
        streamed = _streamed(request)
        parameters = read_parameters(request, known - {"cursor"} if streamed else known)
        if place_name not in parameters:
            raise Misuse(f"Where to look is missing: write {place_name}=...")
        place, seconds = parameters[place_name], read_seconds(parameters)
        guard.check(request.state.principal, model, place)
        most = MAX_WATCHED_ROWS if streamed else MAX_PAGE_ROWS
        limit = int(read_number(parameters, "limit", PAGE_ROWS, least=1, most=most))
        bound = bounds.asked(request, parameters.get("at_least"))
        last = (request.headers.get("last-event-id") or None) if streamed else None

        async def found(at_least: Token) -> RowsPage | TotalsFound | AsyncGenerator[bytes]:
            if streamed:
                return await service.subscribe_rows(
                    cls, place, limit=limit, at_least=at_least, last=last, seconds=seconds
                )
            wanted = Wanted(at_least, seconds)
            return await service.read_models.read(cls, place, wanted, limit=limit, cursor=parameters.get("cursor"))

        try:
            answer = await found(bound.token)
        except Ahead:
            if bound.explicit or last is not None:
                raise
            bound = bound._replace(token=bounds.of())
            answer = await found(bound.token)
        if not isinstance(answer, RowsPage | TotalsFound):
            return guard.stream(request, answer)
        response = json_response(200, answer.json(cls), *answer.positions)
        token = bounds.of(*answer.positions)
        return bounds.carry(request, response, token, kept=bound.explicit or bool(bound.token.offsets))

    return endpoint


def _streamed(request: Request) -> bool:
    return "text/event-stream" in request.headers.get("accept", "")


def _apps(service: Service) -> Endpoint:
    async def endpoint(_request: Request) -> Response:
        app = service.app
        content = {
            "app": app.name,
            "version": app.version,
            "commands": {name: entity_of(cls).__engram__.name for name, cls in app.commands.items()},
            "queries": {name: entity_of(cls).__engram__.name for name, cls in app.queries.items()},
            "read_models": {name: place_of(cls) for name, cls in app.read_models.items()},
        }
        return json_response(200, json.dumps([content]).encode())

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
            "sinks": service.sinks(),
        }
        return json_response(200, json.dumps(content).encode())

    return endpoint


def _events(service: Service, guard: Guard) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        streamed = _streamed(request)
        parameters = read_parameters(request, _STREAM_PARAMETERS if streamed else _PAGE_PARAMETERS)
        after, names = parameters.get("after", START), request.query_params.getlist("name")
        if streamed:
            # A browser that comes back names the last event it has seen, and asks for the same address as before.
            stream = await service.events.stream(request.headers.get("last-event-id") or after, names=names)
            return guard.stream(request, stream)
        limit = read_number(parameters, "limit", PAGE_EVENTS, least=1, most=MAX_PAGE_EVENTS)
        seconds = read_number(parameters, "wait", 0.0, least=0, most=MAX_SECONDS)
        page = await service.events.page(after, limit=int(limit), names=names, seconds=seconds)
        return json_response(200, page.json())

    return endpoint


def _quarantine(service: Service) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        parameters = read_parameters(request, {"limit", "timeout"})
        limit = read_number(parameters, "limit", LISTED_ROWS, least=1, most=MAX_LISTED_ROWS)
        found = await service.quarantine.listed(limit=int(limit), seconds=read_seconds(parameters))
        return json_response(200, found.model_dump_json().encode())

    return endpoint


def _quarantine_row(service: Service) -> Endpoint:
    bounds = Bounds(service.log)

    async def endpoint(request: Request) -> Response:
        position = Position.parse(request.path_params["position"])
        seconds = read_seconds(read_parameters(request, {"timeout"}))
        asked = service.quarantine.drop if request.method == "DELETE" else service.quarantine.row
        return _of_quarantine(position, await asked(position, seconds=seconds), request, bounds)

    return endpoint


def _retry(service: Service) -> Endpoint:
    bounds = Bounds(service.log)

    async def endpoint(request: Request) -> Response:
        position = Position.parse(request.path_params["position"])
        seconds = read_seconds(read_parameters(request, {"timeout"}))
        return _of_quarantine(position, await service.quarantine.retry(position, seconds=seconds), request, bounds)

    return endpoint


def _of_quarantine(
    position: Position, found: FailedCommandDetail | Retried | Dropped | None, request: Request, bounds: Bounds
) -> Response:
    if found is None:
        text = f"There is no command {position} in quarantine: it was retried or dropped, or never failed."
        return problem(404, "not_in_quarantine", text)
    body = found.model_dump_json().encode()
    if found.position == position:
        return json_response(200, body)
    return bounds.carry(request, json_response(200, body, found.position), bounds.of(found.position))


def _snapshots(service: Service) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        parameters = read_parameters(request, {"savepoint", "partition", "timeout"})
        only = int(read_number(parameters, "partition", -1, least=-1, most=2**31))
        seconds = read_number(parameters, "timeout", _SNAPSHOT_SECONDS, least=0, most=_MAX_SNAPSHOT_SECONDS)
        name = parameters.get("savepoint", "")
        taken = await service.snapshots.take(savepoint=name, only=only if only >= 0 else None, seconds=seconds)
        return json_response(200, taken.model_dump_json().encode())

    return endpoint


def _stop(service: Service) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        name = read_parameters(request, {"savepoint"}).get("savepoint", "")
        return json_response(200, (await service.snapshots.end(name)).model_dump_json().encode())

    return endpoint


def _health(service: Service) -> Endpoint:
    async def endpoint(_request: Request) -> Response:
        registry = service.registry
        away = [p for p in range(service.log.partitions) if registry.lookup(p) is None or registry.stuck(p)]
        if away:
            return problem(
                503,
                "not_ready",
                f"{len(away)} of {service.log.partitions} partitions are not served.",
                partitions=away,
            )
        return json_response(200, b'{"status":"ok"}')

    return endpoint


def _metrics(service: Service) -> Endpoint:
    async def endpoint(_request: Request) -> Response:
        return Response(service.metrics.page(), media_type=CONTENT_TYPE_LATEST)

    return endpoint


async def _home(_request: Request) -> Response:
    return RedirectResponse("/docs")
