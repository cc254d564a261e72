"""The OpenAPI document, from the app's own types."""

from __future__ import annotations

import inspect
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import JsonSchemaMode

from engram.model.app import App, entity_of, result_of
from engram.model.command import Command
from engram.model.entity import Shared
from engram.model.query import Query
from engram.model.read_model import Lookup, ReadModel, Tally, place_of, row_of
from engram.serving.batch import MAX_COMMANDS
from engram.serving.failed import Dropped, FailedCommandDetail, FailedCommands, Retried
from engram.serving.openapi_parts import (
    AFTER,
    AT_LEAST,
    COMMON,
    CURSOR,
    HEADERS,
    IDEMPOTENCY,
    KEY,
    LAST_ANSWER_ID,
    LAST_EVENT_ID,
    LIMIT,
    NAME,
    NOT_KNOWN,
    PAGE_LIMIT,
    PARTITION,
    POSITION,
    PROBLEM,
    PROBLEM_REFERENCE,
    REFUSALS,
    ROWS,
    SAVEPOINT,
    SEQUENCE,
    SESSION,
    SNAPSHOT_TIMEOUT,
    TIMEOUT,
    WAIT,
    WAIT_FOR_EVENTS,
    parameter,
    problem,
)
from engram.serving.taken import Ended, SnapshotsTaken

_FORMS: list[type[Any]] = [FailedCommands, FailedCommandDetail, Retried, Dropped, SnapshotsTaken, Ended]
_REFERENCE = "#/components/schemas/{model}"


def describe(app: App, *, closed: bool = False) -> dict[str, Any]:
    """One path per command and query, with request and response schemas; `closed`: with what authentication adds."""
    schemas = _Schemas(app)
    paths: dict[str, Any] = {}
    for name, command in app.commands.items():
        entity = entity_of(command).__engram__.name
        paths[f"/api/{app.name}/{entity}/commands/{name}"] = {
            "post": {
                "tags": [str(entity)],
                "operationId": f"send_{name}",
                "summary": _summary(command, f"Send {name}"),
                "parameters": [*_key(command), WAIT, TIMEOUT, IDEMPOTENCY, SESSION, SEQUENCE],
                "requestBody": _content(schemas.reference(command), required=True),
                "responses": {
                    "200": _handled(schemas.reference(command, result=True)),
                    "202": _result("The command is logged (wait=log).", None, None),
                    "409": problem("The command was rejected: `code` and `detail` say why."),
                    **COMMON,
                    "500": problem("The handler failed; the command left no trace and is quarantined."),
                    "504": problem("The command was handled; whether its effects were is not known (wait=effects)."),
                },
            }
        }
    paths[f"/api/{app.name}/commands"] = {"post": _many_commands(schemas, app)}
    for name, query in app.queries.items():
        entity = entity_of(query).__engram__.name
        operation = {
            "tags": [str(entity)],
            "summary": _summary(query, f"Ask {name}"),
            "responses": {
                "200": _answered(schemas.reference(query, result=True)),
                "409": problem(
                    "The query was rejected: `code` and `detail` say why; or `at_least` is beyond the end of the log."
                ),
                **COMMON,
                "504": problem("The state did not reach `at_least` in time: `at` and `asked_for` say by how much."),
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
        reading = [*_key(query), AT_LEAST, TIMEOUT, LAST_ANSWER_ID]
        paths[f"/api/{app.name}/{entity}/queries/{name}"] = {
            "get": {
                **operation,
                "operationId": f"ask_{name}",
                "description": "With Accept: text/event-stream the answer, and again after each change.",
                "parameters": [*reading, *fields],
            },
            "post": {
                **operation,
                "operationId": f"ask_{name}_with_body",
                "parameters": reading,
                "requestBody": _content(schemas.reference(query), required=False),
            },
        }
    for name, model in app.read_models.items():
        paths[f"/api/{app.name}/read_models/{name}"] = {"get": _read_model(schemas, name, model)}
    whole: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": f"{app.name}, on Engram", "version": str(app.version)},
        "paths": {**paths, **_own_paths(schemas, app)},
        "components": {"schemas": {"Problem": PROBLEM, **schemas.definitions}},
    }
    return _closed(whole) if closed else whole


def _closed(document: dict[str, Any]) -> dict[str, Any]:
    """The same of an app that wants to know who asks: where a token is needed, where it helps, and what is refused."""
    document["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}}
    for path in document["paths"].values():
        for operation in path.values():
            if operation["operationId"] == "health":
                continue
            of_operators = "engram" in operation["tags"]
            operation["security"] = [{"bearer": []}] if of_operators else [{}, {"bearer": []}]
            operation["responses"] = {**NOT_KNOWN, **operation["responses"], **REFUSALS}
    return document


def _key(cls: type[Command[Any, Any] | Query[Any, Any]]) -> list[dict[str, Any]]:
    """What is shared has no key."""
    return [] if issubclass(entity_of(cls), Shared) else [KEY]


class _Schemas:
    """Schemas of all commands and queries and of their results, made together so that names do not clash."""

    def __init__(self, app: App) -> None:
        classes: list[type[Any]] = [*app.commands.values(), *app.queries.values()]
        events: list[type[Any]] = list(app.events.values())
        inputs: list[tuple[Any, JsonSchemaMode, TypeAdapter[Any]]] = []
        for cls in classes:
            inputs.append(((cls, False), "validation", TypeAdapter(cls)))
            inputs.append(((cls, True), "serialization", TypeAdapter(result_of(cls))))
        inputs += [((cls, False), "validation", TypeAdapter(cls)) for cls in events]
        models: list[type[ReadModel]] = list(app.read_models.values())
        inputs += [((cls, True), "serialization", TypeAdapter(row_of(cls))) for cls in models]
        inputs += [((form, True), "serialization", TypeAdapter(form)) for form in _FORMS]
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
    return {"description": description, "headers": HEADERS, "content": {"application/json": {"schema": whole}}}


def _handled(reply: Any) -> dict[str, Any]:
    """A reply; after `wait=effects` with the token that covers all that it led to."""
    result = _result("The command was handled.", "reply", reply)
    result["content"]["application/json"]["schema"]["properties"]["token"] = {"type": "string"}
    return result


def _answered(answer: Any) -> dict[str, Any]:
    """An answer; with Accept: text/event-stream a stream of them."""
    result = _result("The answer of live state.", "answer", answer)
    result["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    return result


def _many_commands(schemas: _Schemas, app: App) -> dict[str, Any]:
    entries = []
    for name, command in app.commands.items():
        own_key = {} if issubclass(entity_of(command), Shared) else {"key": KEY["schema"]}
        properties = {
            "command": {"const": name},
            **own_key,
            "body": schemas.reference(command),
            "idempotency_key": IDEMPOTENCY["schema"],
        }
        required = ["command", *own_key, "body"]
        entries.append(
            {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
        )
    position = {"type": "string", "examples": ["3:1042.0"]}
    results = [
        {"type": "object", "properties": {"reply": {}, "position": position}, "required": ["reply", "position"]},
        {"type": "object", "properties": {"position": position}, "required": ["position"]},
        {"type": "object", "properties": {"problem": {"$ref": PROBLEM_REFERENCE}}, "required": ["problem"]},
    ]
    replies = {"type": "array", "items": {"anyOf": results}}
    whole = {"type": "object", "properties": {"replies": replies}, "required": ["replies"]}
    done = {"headers": {"Engram-Token": HEADERS["Engram-Token"]}, "content": {"application/json": {"schema": whole}}}
    return {
        "tags": ["commands"],
        "operationId": "send_many",
        "summary": "Send many commands, each for itself: a reply or a problem for each, in their order",
        "parameters": [{**WAIT, "schema": {**WAIT["schema"], "enum": ["reply", "log"]}}, TIMEOUT, SESSION, SEQUENCE],
        "requestBody": _content(
            {"type": "array", "items": {"anyOf": entries}, "minItems": 1, "maxItems": MAX_COMMANDS}, required=True
        ),
        "responses": {
            "200": {"description": "All that fit were handled.", **done},
            "202": {"description": "All that fit are logged (wait=log).", **done},
            **COMMON,
        },
    }


def _read_model(schemas: _Schemas, name: str, model: type[ReadModel]) -> dict[str, Any]:
    place, row = place_of(model), schemas.reference(model, result=True)
    number: dict[str, Any] = {"type": "number"}
    if issubclass(model, Tally):
        perhaps = {"type": ["number", "null"]}
        found = {"count": {"type": "integer"}, "sum": number, "min": perhaps, "max": perhaps}
    else:
        scored = {"type": "object", "properties": {"score": number, "row": row}, "required": ["score", "row"]}
        rows = {"type": "array", "items": row if issubclass(model, Lookup) else scored}
        found = {"rows": rows, "cursor": {"type": ["string", "null"], "description": "Where to go on."}}
    found["positions"] = {"type": "array", "items": {"type": "string", "examples": ["3:1042.0"]}}
    whole = {"type": "object", "properties": found, "required": list(found)}
    content = {"application/json": {"schema": whole}, "text/event-stream": {"schema": {"type": "string"}}}
    paging = [] if issubclass(model, Tally) else [PAGE_LIMIT, CURSOR]
    return {
        "tags": ["read models"],
        "operationId": f"look_{name}",
        "summary": _summary(model, f"Look into {name}"),
        "description": "With Accept: text/event-stream what is there, and again after each change; up to 1,000 rows.",
        "parameters": [
            parameter(place, "query", "Where to look.", required=True, type="string"),
            *paging,
            AT_LEAST,
            TIMEOUT,
            LAST_ANSWER_ID,
        ],
        "responses": {
            "200": {"description": "From live state.", "content": content},
            "400": problem("A cursor, token or last event is not whole, or of something else."),
            "409": problem("`at_least` is beyond the end of the log."),
            "422": problem("A parameter does not fit."),
            "500": problem("The read model is broken: `detail` says why."),
            "503": problem("Not now; try again. While it is being built, `detail` says how far it is."),
            "504": problem("The state did not reach `at_least` in time."),
        },
    }


def _events(schemas: _Schemas, app: App) -> dict[str, Any]:
    text = {"type": "string"}
    event = {
        "type": "object",
        "properties": {
            "id": {**text, "examples": ["3:1042.7.0"]},
            "time": {**text, "format": "date-time"},
            "name": {**text, "enum": sorted(app.events)} if app.events else text,
            "version": {"type": ["integer", "string"], "examples": [1, "2 post=3"]},
            "key": text,
            "body": {"anyOf": [schemas.reference(cls) for cls in app.events.values()]} if app.events else {},
            "cause": {**text, "examples": ["3:1042.7"]},
            "root": {**text, "examples": ["0:1040.2"]},
            "cursor": {**text, "description": "Where to go on after this event."},
        },
        "required": ["id", "time", "name", "version", "key", "body", "cause", "cursor"],
    }
    page = {
        "type": "object",
        "properties": {"events": {"type": "array", "items": event}, "cursor": text, "more": {"type": "boolean"}},
        "required": ["events", "cursor", "more"],
    }
    return {
        "tags": ["engram"],
        "operationId": "events",
        "summary": "The events after a cursor: a page, or with Accept: text/event-stream all that come",
        "parameters": [AFTER, NAME, LIMIT, WAIT_FOR_EVENTS, LAST_EVENT_ID],
        "responses": {
            "200": {
                "description": "The next events, and the cursor to ask with for those after them.",
                "content": {"application/json": {"schema": page}, "text/event-stream": {"schema": text}},
            },
            "422": problem("The cursor, or another parameter, does not fit."),
            "503": problem("Not now; try again."),
        },
    }


def _quarantine(schemas: _Schemas, path: str) -> dict[str, Any]:
    def operation(name: str, summary: str, done: str, form: type[Any], *parameters: dict[str, Any]) -> dict[str, Any]:
        content = {"application/json": {"schema": schemas.reference(form, result=True)}}
        return {
            "tags": ["engram"],
            "operationId": name,
            "summary": summary,
            "parameters": [*parameters, TIMEOUT],
            "responses": {
                "200": {"description": done, "content": content},
                **({"404": problem("There is no such command in quarantine.")} if POSITION in parameters else {}),
                "422": problem("The position or a parameter does not fit, or the command cannot be sent again."),
                "503": problem("Not now; try again."),
            },
        }

    listed = "The newest, and which partitions could not be asked."
    handled = "It was handled: `outcome` says how."
    detail = FailedCommandDetail
    return {
        path: {"get": operation("quarantine", "Commands that failed", listed, FailedCommands, ROWS)},
        f"{path}/{{position}}": {
            "get": operation("quarantined", "A failed command with its traceback", "The command.", detail, POSITION),
            "delete": operation("drop_quarantined", "Drop a failed command", "It is dropped.", Dropped, POSITION),
        },
        f"{path}/{{position}}/retry": {
            "post": operation("retry_quarantined", "Send a failed command again", handled, Retried, POSITION)
        },
    }


def _snapshots(schemas: _Schemas, path: str) -> dict[str, Any]:
    def operation(name: str, summary: str, done: str, form: type[Any], *parameters: dict[str, Any]) -> dict[str, Any]:
        content = {"application/json": {"schema": schemas.reference(form, result=True)}}
        return {
            "post": {
                "tags": ["engram"],
                "operationId": name,
                "summary": summary,
                "parameters": list(parameters),
                "responses": {
                    "200": {"description": done, "content": content},
                    "422": problem("The name is used already, or a parameter does not fit."),
                    "503": problem("It could not be taken: `detail` says why."),
                },
            }
        }

    take, stop = "Take a snapshot of every partition, or of one", "Stop the app with a savepoint of every partition"
    taken, ended = "All are published.", "All savepoints are published, and the app ends."
    return {
        f"{path}/snapshots": operation(
            "take_snapshots", take, taken, SnapshotsTaken, SAVEPOINT, PARTITION, SNAPSHOT_TIMEOUT
        ),
        f"{path}/stop": operation("stop_with_savepoint", stop, ended, Ended, {**SAVEPOINT, "required": True}),
    }


def _own_paths(schemas: _Schemas, app: App) -> dict[str, Any]:
    anything = {"description": "OK", "content": {"application/json": {"schema": {}}}}
    digests = {"name": "digests", "in": "query", "schema": {"type": "boolean", "default": False}}
    return {
        f"/api/{app.name}": {
            "get": {
                "tags": ["engram"],
                "operationId": "status",
                "summary": "Shards and partitions: where, how far, how many",
                "parameters": [digests],
                "responses": {"200": anything, "503": problem("A shard did not answer in time: try again.")},
            }
        },
        f"/api/{app.name}/events": {"get": _events(schemas, app)},
        **_quarantine(schemas, f"/api/{app.name}/quarantine"),
        **_snapshots(schemas, f"/api/{app.name}"),
        "/health": {
            "get": {
                "tags": ["engram"],
                "operationId": "health",
                "summary": "Whether every partition is served",
                "responses": {"200": anything, "503": problem("Some are not.")},
            }
        },
        "/metrics": {
            "get": {
                "tags": ["engram"],
                "operationId": "metrics",
                "summary": "Figures of everything, for Prometheus",
                "responses": {
                    "200": {"description": "OK", "content": {"text/plain": {"schema": {"type": "string"}}}},
                },
            }
        },
    }
