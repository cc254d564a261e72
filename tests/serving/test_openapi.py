"""The API page and the OpenAPI document: made from the app's own types, and served without the internet."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest
from engram.model.app import entity_of
from pydantic import TypeAdapter

from tests.serving.running import RunningApp

METHODS = {"get", "put", "post", "delete", "options", "head", "patch", "trace"}


class _Links(HTMLParser):
    """Collects what a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if name in ("src", "href") and value]


@pytest.fixture(scope="module")
def document(social: RunningApp) -> dict[str, Any]:
    response = social.http.get("/openapi.json")
    assert response.status_code == 200
    return response.json()


def _walk(node: Any) -> Iterator[dict[str, Any]]:
    """All objects within a JSON value."""
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from _walk(value)
    elif isinstance(node, list):
        for value in node:
            yield from _walk(value)


def _follow(document: dict[str, Any], reference: str) -> Any:
    found: Any = document
    for step in reference.removeprefix("#/").split("/"):
        found = found[step]
    return found


def _resolved(document: dict[str, Any], schema: Any) -> Any:
    return _follow(document, schema["$ref"]) if "$ref" in schema else schema


@pytest.mark.parametrize("page", ["/docs", "/redoc"])
def test_the_api_page_loads_nothing_from_elsewhere(social: RunningApp, page: str):
    """Every script, style sheet and picture of the page is served by the gateway itself."""
    response = social.http.get(page)
    links = _Links()
    links.feed(response.text)

    assert response.status_code == 200
    assert links.found
    for link in links.found:
        assert urlsplit(urljoin(social.url + page, link)).netloc == urlsplit(social.url).netloc, link
        assert social.http.get(link).status_code == 200, link
    assert not re.findall(r"https?://(?!127\.0\.0\.1)[^\"' )]+", response.text)


def test_the_front_door_leads_to_the_api_page(social: RunningApp):
    """Whoever opens the bare address in a browser lands on the page."""
    response = social.http.get("/")

    assert (response.is_redirect, response.headers["location"]) == (True, "/docs")


def test_the_document_is_openapi_3_1(document: dict[str, Any]):
    """Version, title and the version of the app are there, and every operation has an id of its own."""
    operations = [
        operation for path in document["paths"].values() for method, operation in path.items() if method in METHODS
    ]

    assert document["openapi"].startswith("3.1.")
    assert document["info"] == {"title": "social, on Engram", "version": "1"}
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    for operation in operations:
        assert operation["summary"]
        for status, response in operation["responses"].items():
            assert re.fullmatch(r"[1-5]\d\d", status)
            assert response["description"]
        for parameter in operation.get("parameters", []):
            assert parameter["in"] in ("query", "header", "path")
            assert parameter["name"]
            assert "schema" in parameter


def test_every_reference_leads_somewhere(document: dict[str, Any]):
    """No `$ref` points out of the document or to something that is not in it."""
    references = {node["$ref"] for node in _walk(document) if isinstance(node.get("$ref"), str)}

    assert references
    for reference in references:
        assert reference.startswith("#/components/schemas/")
        assert isinstance(_follow(document, reference), dict)


def test_no_schema_is_there_in_vain(document: dict[str, Any]):
    """Every component is used by something."""
    references = {node["$ref"].rsplit("/", 1)[1] for node in _walk(document) if isinstance(node.get("$ref"), str)}

    assert set(document["components"]["schemas"]) == references


def test_every_command_is_there_with_its_fields_and_its_reply(social: RunningApp, document: dict[str, Any]):
    """The body of a command is the command's own schema; its reply is that of its reply type."""
    for name, command in social.app.commands.items():
        entity = entity_of(command).__engram__.name
        operation = document["paths"][f"/api/social/{entity}/commands/{name}"]["post"]
        body = _resolved(document, operation["requestBody"]["content"]["application/json"]["schema"])
        assert set(body["properties"]) == set(command.model_fields)
        assert body["additionalProperties"] is False
        reply = operation["responses"]["200"]["content"]["application/json"]["schema"]
        assert set(reply["properties"]) == {"reply", "position", "token"}
        assert reply["required"] == ["reply", "position"]
        assert {"202", "400", "409", "413", "422", "500", "503"} <= set(operation["responses"])

    publish = document["paths"]["/api/social/user/commands/publish"]["post"]
    reply = publish["responses"]["200"]["content"]["application/json"]["schema"]["properties"]["reply"]
    assert _resolved(document, reply)["type"] == "string"
    assert (
        publish["summary"]
        == "Write a post; the reply is its id. It goes to the timelines of all followers, unless they are very many."
    )


def test_every_query_is_there_with_its_fields_and_its_answer(social: RunningApp, document: dict[str, Any]):
    """A query's fields are parameters of GET and the body of POST; its answer is that of its answer type."""
    for name, query in social.app.queries.items():
        entity = entity_of(query).__engram__.name
        path = document["paths"][f"/api/social/{entity}/queries/{name}"]
        parameters = {parameter["name"] for parameter in path["get"]["parameters"]}
        key = set() if entity == "rules" else {"key"}
        assert parameters == {"at_least", "timeout", "Last-Event-ID", *key, *query.model_fields}
        body = _resolved(document, path["post"]["requestBody"]["content"]["application/json"]["schema"])
        assert set(body.get("properties", {})) == set(query.model_fields)
        for operation in path.values():
            content = operation["responses"]["200"]["content"]
            assert set(content) == {"application/json", "text/event-stream"}
            assert set(content["application/json"]["schema"]["properties"]) == {"answer", "position"}
            assert "504" in operation["responses"]

    answer = document["paths"]["/api/social/user/queries/profile"]["get"]["responses"]["200"]
    card = answer["content"]["application/json"]["schema"]["properties"]["answer"]
    assert {"key", "name", "followers"} <= set(_resolved(document, card)["properties"])


def test_constraints_of_the_types_are_in_the_document(document: dict[str, Any]):
    """What is checked is what is said: the lengths and bounds of fields are in the schemas."""
    publish = document["paths"]["/api/social/user/commands/publish"]["post"]
    body = _resolved(document, publish["requestBody"]["content"]["application/json"]["schema"])
    posts = document["paths"]["/api/social/user/queries/posts"]["get"]
    (limit,) = (p["schema"] for p in posts["parameters"] if p["name"] == "limit")

    assert (body["properties"]["text"]["minLength"], body["properties"]["text"]["maxLength"]) == (1, 500)
    assert (limit["minimum"], limit["maximum"], limit["default"]) == (1, 200, 20)


def test_a_problem_is_described_as_it_comes(social: RunningApp, document: dict[str, Any]):
    """A real problem has the fields that the document's schema of problems requires, with their types."""
    response = social.http.get("/api/social/user/queries/profile", params={"key": "nobody-here"})
    schema = document["components"]["schemas"]["Problem"]
    types = {"string": str, "integer": int, "array": list}

    assert set(schema["required"]) <= set(response.json())
    for name, value in response.json().items():
        if name in schema["properties"]:
            TypeAdapter(types[schema["properties"][name]["type"]]).validate_python(value, strict=True)


def test_the_names_of_an_app_can_be_looked_up(social: RunningApp):
    """`/api` says which apps there are, with the entity of every command and query."""
    (app,) = social.http.get("/api").json()

    assert (app["app"], app["version"]) == ("social", 1)
    assert app["commands"] == {n: entity_of(c).__engram__.name for n, c in social.app.commands.items()}
    assert app["queries"] == {n: entity_of(q).__engram__.name for n, q in social.app.queries.items()}
    assert {*app["commands"].values(), *app["queries"].values()} == {"user", "tag", "rules"}
