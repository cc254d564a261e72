"""Bad input, and what it gets: always problem+json, with what to do in `detail`."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.serving.running import RunningApp

ADD = "/api/counters/counter/commands/add"
VALUE = "/api/counters/counter/queries/value"
MEBIBYTE = 1024 * 1024


def _problem(response: httpx.Response) -> dict[str, Any]:
    """The problem in a response, after what holds for all of them."""
    assert response.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = response.json()
    assert problem["status"] == response.status_code
    assert problem["type"].startswith("urn:engram:")
    assert problem["title"]
    assert problem["detail"]
    return problem


def _post(running: RunningApp, path: str = ADD, **how: Any) -> httpx.Response:
    return running.http.post(path, **({"params": {"key": "bad"}} | how))


# Names


@pytest.mark.parametrize(
    ("path", "kind", "near"),
    [
        ("/api/counter/counter/commands/add", "unknown_app", ["counters"]),
        ("/api/counter", "unknown_app", ["counters"]),
        ("/api/counters/conter/commands/add", "unknown_entity", ["counter"]),
        ("/api/counters/counter/commands/ad", "unknown_command", ["add"]),
        ("/api/counters/counter/commands/value", "unknown_command", []),
        ("/api/counters/counter/queries/values", "unknown_query", ["value"]),
    ],
)
def test_an_unknown_name_is_404_with_the_near_misses(counters: RunningApp, path: str, kind: str, near: list[str]):
    """App, entity, command and query: the problem says which is unknown, and what was perhaps meant."""
    response = _post(counters, path)

    problem = _problem(response)
    assert (response.status_code, problem["type"]) == (404, f"urn:engram:{kind}")
    assert problem["near"] == near
    assert all(name in problem["detail"] for name in near)


def test_a_name_that_is_like_no_other_gets_the_list(counters: RunningApp):
    """Without a near miss the problem lists what there is."""
    problem = _problem(_post(counters, "/api/counters/counter/commands/xyz"))

    assert problem["detail"] == "There is no command named 'xyz'. There are: add, fail, mark."


@pytest.mark.parametrize("path", ["/nothing", "/api/counters/counter", "/api/counters/counter/comands/add", "/apis"])
def test_any_other_path_is_404(counters: RunningApp, path: str):
    """A path that is none of ours points to the API page."""
    response = counters.http.get(path)

    assert (response.status_code, _problem(response)["type"]) == (404, "urn:engram:unknown_path")
    assert "/docs" in response.json()["detail"]


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_a_wrong_method_for_a_command_is_405(counters: RunningApp, method: str):
    """Commands are sent with POST, and the problem says so."""
    response = counters.http.request(method, ADD, params={"key": "bad"})

    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert "use POST" in _problem(response)["detail"]


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH"])
def test_a_wrong_method_for_a_query_is_405(counters: RunningApp, method: str):
    """Queries are asked with GET or POST."""
    response = counters.http.request(method, VALUE, params={"key": "bad"})

    assert (response.status_code, response.headers["allow"]) == (405, "GET, POST")
    _problem(response)


# Bodies


@pytest.mark.parametrize(
    ("body", "paths"),
    [
        ({"by": "three"}, ["by"]),
        ({"by": 1, "extra": 1}, ["extra"]),
        ({"by": None, "more": 1}, ["by", "more"]),
        ({"tags": [{"label": "a", "weight": 1}, {"label": 7}]}, ["tags.1.label", "tags.1.weight"]),
        ({"tags": {}}, ["tags"]),
        ([], ["body"]),
        ("add", ["body"]),
        (None, ["body"]),
    ],
)
def test_wrong_or_extra_fields_are_422_with_field_paths(counters: RunningApp, body: Any, paths: list[str]):
    """Every field that does not fit is named by its path, nested ones too, and nothing is logged."""
    ends = [counters.log.end(p) for p in range(4)]
    response = _post(counters, json=body) if body is not None else _post(counters, content=b"null")

    problem = _problem(response)
    assert (response.status_code, problem["type"]) == (422, "urn:engram:invalid_fields")
    assert [error["path"] for error in problem["errors"]] == paths
    assert all(error["message"] and error["path"] in problem["detail"] for error in problem["errors"])
    assert [counters.log.end(p) for p in range(4)] == ends


def test_fields_of_a_query_are_checked_in_parameters_and_in_a_body(counters: RunningApp):
    """GET and POST of a query name the field that does not fit."""
    by_get = counters.http.get(VALUE, params={"key": "bad", "times": "often"})
    by_post = _post(counters, VALUE, json={"times": "often"})

    for response in (by_get, by_post):
        assert response.status_code == 422
        assert [error["path"] for error in _problem(response)["errors"]] == ["times"]


@pytest.mark.parametrize("body", [b"{", b"hello", b'{"by": 1}}', b"\xff\xfe", b'{"by": 1', b"\x00"])
def test_a_body_that_is_not_json_is_400(counters: RunningApp, body: bytes):
    """Broken JSON is told apart from JSON that does not fit."""
    response = _post(counters, content=body)

    assert (response.status_code, _problem(response)["type"]) == (400, "urn:engram:broken_json")


def test_a_body_over_one_mebibyte_is_413(counters: RunningApp):
    """One byte over the limit is refused, for commands and queries; the limit itself is read."""
    for path in (ADD, VALUE):
        response = _post(counters, path, content=b" " * (MEBIBYTE + 1))
        assert (response.status_code, _problem(response)["type"]) == (413, "urn:engram:too_large")
        assert "1,048,576" in response.json()["detail"]

    assert _post(counters, content=b" " * (MEBIBYTE - 2) + b"{}").status_code == 200


def test_a_body_of_unknown_length_is_read_no_further_than_the_limit(counters: RunningApp):
    """A stream that never says how long it is gets 413 as well."""
    response = _post(counters, content=(b" " * 65_536 for _ in range(64)))

    assert response.status_code == 413
    _problem(response)


# Keys


@pytest.mark.parametrize("key", ["", "x" * 1025, "é" * 513])
@pytest.mark.parametrize("path", [ADD, VALUE])
def test_an_empty_or_over_long_key_is_422(counters: RunningApp, path: str, key: str):
    """A key has 1 to 1,024 bytes of UTF-8."""
    response = _post(counters, path, params={"key": key})

    assert response.status_code == 422
    assert "key" in _problem(response)["detail"]


def test_a_missing_key_is_422(counters: RunningApp):
    """A command is always for somebody."""
    response = counters.http.post(ADD)

    assert (response.status_code, _problem(response)["detail"][:16]) == (422, "The key is empty")


@pytest.mark.parametrize("key", ["x" * 1024, "é" * 512, "a b/c?d&e=f", "日本", "'; drop table record", "\n", "🦉"])
def test_any_other_key_is_a_key(counters: RunningApp, key: str):
    """Up to the limit every text names an entity, whatever characters it has."""
    sent = _post(counters, params={"key": key})
    asked = counters.http.get(VALUE, params={"key": key, "at_least": sent.json()["position"]})

    assert (sent.json()["reply"], asked.json()["answer"]) == (1, 1)


# Parameters and headers


@pytest.mark.parametrize(
    ("path", "parameters", "word"),
    [
        (ADD, {"keys": "x"}, "keys"),
        (ADD, {"at_least": "0:1.0"}, "at_least"),
        (VALUE, {"wait": "log"}, "wait"),
        (ADD, {"wait": "forever"}, "forever"),
        (ADD, {"timeout": "soon"}, "soon"),
        (ADD, {"timeout": "-1"}, "-1"),
        (ADD, {"timeout": "61"}, "61"),
        (ADD, {"timeout": "nan"}, "nan"),
        (ADD, {"timeout": "inf"}, "inf"),
        (ADD, {"timeout": "soon", "wait": "log"}, "soon"),
        (VALUE, {"timeout": "soon"}, "soon"),
        (VALUE, {"at_least": "here"}, "here"),
        (VALUE, {"at_least": "1:2"}, "1:2"),
        (VALUE, {"at_least": "0:1.0,later"}, "later"),
        (VALUE, {"at_least": "-1:2.0"}, "-1:2.0"),
        (VALUE, {"at_least": "9:0.0"}, "no partition 9: the log has 0 to 3"),
    ],
)
def test_a_bad_parameter_is_422(counters: RunningApp, path: str, parameters: dict[str, str], word: str):
    """Unknown parameters, timeouts and positions that are none: the problem repeats what it did not understand."""
    response = _post(counters, path, params={"key": "bad", **parameters})

    assert (response.status_code, _problem(response)["type"]) == (422, "urn:engram:misuse")
    assert word in response.json()["detail"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Idempotency-Key": ""},
        {"Idempotency-Key": "x" * 256},
        {"Idempotency-Key": "two words"},
        {"Idempotency-Key": "tab\there"},
        {"Engram-Session": "alone"},
        {"Engram-Sequence": "1"},
        {"Engram-Session": "s", "Engram-Sequence": "one"},
        {"Engram-Session": "s", "Engram-Sequence": "-1"},
        {"Engram-Session": "s", "Engram-Sequence": "1" * 16},
        {"Engram-Session": "", "Engram-Sequence": "1"},
        {"Engram-Session": "x" * 65, "Engram-Sequence": "1"},
        {"Engram-Session": "g:reserved", "Engram-Sequence": "1"},
    ],
)
def test_a_bad_id_is_422(counters: RunningApp, headers: dict[str, str]):
    """Idempotency keys and session headers are checked before anything is logged."""
    ends = [counters.log.end(p) for p in range(4)]
    response = _post(counters, headers=headers)

    assert (response.status_code, _problem(response)["type"]) == (422, "urn:engram:misuse")
    assert [counters.log.end(p) for p in range(4)] == ends


def test_a_bad_position_in_a_header_is_422(counters: RunningApp):
    """`Engram-At-Least` is checked like its parameter."""
    response = _post(counters, VALUE, headers={"Engram-At-Least": "yesterday"})

    assert response.status_code == 422
    assert "yesterday" in _problem(response)["detail"]
