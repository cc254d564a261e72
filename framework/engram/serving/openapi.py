"""The OpenAPI document, from the app's own types."""

from __future__ import annotations

import inspect
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import JsonSchemaMode

from engram.model.app import App, entity_of, result_of

_REFERENCE = "#/components/schemas/{model}"


def describe(app: App) -> dict[str, Any]:
    """One path per command and query, with request and response schemas."""
    schemas = _Schemas(app)
    paths: dict[str, Any] = {}
    for name, command in app.commands.items():
        entity = entity_of(command).__engram__.name
        paths[f"/api/{app.name}/{entity}/commands/{name}"] = {
            "post": {
                "tags": [str(entity)],
                "operationId": f"send_{name}",
                "summary": _summary(command, f"Send {name}"),
                "parameters": [_KEY, _WAIT, _TIMEOUT, _IDEMPOTENCY, _SESSION, _SEQUENCE],
                "requestBody": _content(schemas.reference(command), required=True),
                "responses": {
                    "200": _result("The command was handled.", "reply", schemas.reference(command, result=True)),
                    "202": _result("The command is logged (wait=log).", None, None),
                    "409": _problem("The command was rejected: `code` and `detail` say why."),
                    **_COMMON,
                    "500": _problem("The handler failed; the command left no trace and is quarantined."),
                },
            }
        }
    for name, query in app.queries.items():
        entity = entity_of(query).__engram__.name
        operation = {
            "tags": [str(entity)],
            "summary": _summary(query, f"Ask {name}"),
            "responses": {
                "200": _result("The answer of live state.", "answer", schemas.reference(query, result=True)),
                "409": _problem("The query was rejected: `code` and `detail` say why."),
                **_COMMON,
                "504": _problem("The state did not reach `at_least` in time."),
            },
        }
        fields = [
            {
                "name": field,
                "in": "query",
                "required": info.is_required(),
                "schema": schemas.field(query, field),
            }
            for field, info in query.model_fields.items()
        ]
        reading = [_KEY, _AT_LEAST, _TIMEOUT]
        paths[f"/api/{app.name}/{entity}/queries/{name}"] = {
            "get": {**operation, "operationId": f"ask_{name}", "parameters": [*reading, *fields]},
            "post": {
                **operation,
                "operationId": f"ask_{name}_with_body",
                "parameters": reading,
                "requestBody": _content(schemas.reference(query), required=False),
            },
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": f"{app.name}, on Engram", "version": str(app.version)},
        "paths": {**paths, **_own_paths(app)},
        "components": {"schemas": {"Problem": _PROBLEM, **schemas.definitions}},
    }


class _Schemas:
    """Schemas of all commands and queries and of their results, made together so that names do not clash."""

    def __init__(self, app: App) -> None:
        classes: list[type[Any]] = [*app.commands.values(), *app.queries.values()]
        inputs: list[tuple[Any, JsonSchemaMode, TypeAdapter[Any]]] = []
        for cls in classes:
            inputs.append(((cls, False), "validation", TypeAdapter(cls)))
            inputs.append(((cls, True), "serialization", TypeAdapter(result_of(cls))))
        self._by_key, rest = TypeAdapter.json_schemas(inputs, ref_template=_REFERENCE)
        self.definitions: dict[str, Any] = rest.get("$defs", {})

    def reference(self, cls: type[Any], *, result: bool = False) -> Any:
        return self._by_key[(cls, result), "serialization" if result else "validation"]

    def field(self, cls: type[Any], name: str) -> Any:
        whole = self.reference(cls)
        if "$ref" in whole:
            whole = self.definitions[whole["$ref"].rsplit("/", 1)[1]]
        return whole["properties"][name]


def _summary(cls: type[Any], otherwise: str) -> str:
    own = cls.__dict__.get("__doc__")
    return inspect.cleandoc(own).splitlines()[0] if own else otherwise


def _content(schema: Any, *, required: bool) -> dict[str, Any]:
    return {"required": required, "content": {"application/json": {"schema": schema}}}


def _result(description: str, name: str | None, schema: Any) -> dict[str, Any]:
    properties: dict[str, Any] = {"position": {"type": "string", "examples": ["3:1042.0"]}}
    if name is not None:
        properties = {name: schema, **properties}
    whole = {"type": "object", "properties": properties, "required": list(properties)}
    return {"description": description, "content": {"application/json": {"schema": whole}}}


def _problem(description: str) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Problem"}
    return {"description": description, "content": {"application/problem+json": {"schema": schema}}}


def _own_paths(app: App) -> dict[str, Any]:
    anything = {"description": "OK", "content": {"application/json": {"schema": {}}}}
    digests = {"name": "digests", "in": "query", "schema": {"type": "boolean", "default": False}}
    return {
        f"/api/{app.name}": {
            "get": {
                "tags": ["engram"],
                "operationId": "status",
                "summary": "Shards and partitions: where, how far, how many",
                "parameters": [digests],
                "responses": {"200": anything},
            }
        },
        "/health": {
            "get": {
                "tags": ["engram"],
                "operationId": "health",
                "summary": "Whether every partition is served",
                "responses": {"200": anything, "503": _problem("Some are not.")},
            }
        },
    }


def _parameter(name: str, where: str, description: str, *, required: bool = False, **schema: Any) -> dict[str, Any]:
    return {"name": name, "in": where, "required": required, "description": description, "schema": schema}


_KEY = _parameter("key", "query", "The entity.", required=True, type="string", minLength=1, maxLength=1024)
_WAIT = _parameter("wait", "query", "Until when to wait.", type="string", enum=["reply", "log"], default="reply")
_TIMEOUT = _parameter("timeout", "query", "Seconds to wait.", type="number", minimum=0, maximum=60, default=10)
_AT_LEAST = _parameter("at_least", "query", "Positions that the answer must include, with commas.", type="string")
_IDEMPOTENCY = _parameter(
    "Idempotency-Key",
    "header",
    "The same key again gives the first reply again.",
    type="string",
    maxLength=255,
)
_SESSION = _parameter("Engram-Session", "header", "The client's session, with Engram-Sequence.", type="string")
_SEQUENCE = _parameter("Engram-Sequence", "header", "Growing numbers within the session.", type="integer", minimum=0)
_COMMON = {
    "400": _problem("The body is not JSON."),
    "413": _problem("The body is too large."),
    "422": _problem("A field, the key or a parameter does not fit: `errors` has the paths."),
    "503": _problem("Not now; try again."),
}
_PROBLEM = {
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "errors": {"type": "array", "items": {"type": "object"}},
    },
    "required": ["type", "title", "status", "detail"],
}
