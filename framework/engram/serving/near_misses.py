"""Whatever no route has matched: which part of the path is wrong, and what comes near."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from engram.model.app import entity_of
from engram.serving.guard import Endpoint
from engram.serving.problems import problem, unknown
from engram.serving.service import Service


def near_misses(service: Service) -> Endpoint:
    """Whatever no route has matched: says which part of the path is unknown."""
    app = service.app
    places: dict[str, dict[str, str]] = {
        "commands": {name: entity_of(cls).__engram__.name or "" for name, cls in app.commands.items()},
        "queries": {name: entity_of(cls).__engram__.name or "" for name, cls in app.queries.items()},
    }

    async def endpoint(request: Request) -> Response:  # noqa: PLR0911 - one return per part that is wrong
        head, name, entity, kind, last = [*request.path_params["path"].split("/"), "", "", "", "", ""][:5]
        if head != "api" or (kind not in places and entity in app.entities and name == app.name):
            return problem(404, "unknown_path", f"There is nothing at {request.url.path}. See /docs.")
        if name != app.name:
            return unknown("app", name, [app.name])
        if allowed := _own_methods(entity, kind, last):
            return _wrong_method(request, allowed)
        if entity == "read_models" and entity not in app.entities:
            known = list(app.read_models)
            return _wrong_method(request, ["GET"]) if kind in known else unknown("read model", kind, known)
        if entity not in app.entities:
            return unknown("entity", entity, list(app.entities))
        of_entity = [n for n, of in places[kind].items() if of == entity]
        if last not in of_entity:
            return unknown("command" if kind == "commands" else "query", last, of_entity)
        return _wrong_method(request, ["POST"] if kind == "commands" else ["GET", "POST"])

    return endpoint


def _own_methods(first: str, second: str, third: str) -> list[str]:
    """The methods of a path that every app has; none for other paths."""
    if (first, second, third) in (("events", "", ""), ("quarantine", "", "")):
        return ["GET"]
    if first == "quarantine":
        return {"": ["GET", "DELETE"], "retry": ["POST"]}.get(third, [])
    if first in ("commands", "snapshots", "stop") and not second:
        return ["POST"]
    return []


def _wrong_method(request: Request, allowed: list[str]) -> Response:
    wrong = f"{request.method} is not for {request.url.path}: use {' or '.join(allowed)}."
    response = problem(405, "wrong_method", wrong)
    response.headers["Allow"] = ", ".join(allowed)
    return response
