"""`engram send`, `engram ask` and `engram look`: one request to a running app, by names alone."""

from __future__ import annotations

import json as json_module
import os
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import ProxyHandler, Request, build_opener

from engram.cli.output import say, say_json
from engram.errors import Denied, Misuse, Quarantined, Rejected, Unauthenticated, Unavailable

_TIMEOUT_S = 30.0
_KINDS = {"commands": "command", "queries": "query", "read_models": "read model"}


def send_command(
    url: str, command: str, key: str, body: str, *, idempotency_key: str | None, wait: str, token: str, json: bool
) -> None:
    headers = _authorization(token)
    if idempotency_key is not None:
        headers["Idempotency-Key"] = idempotency_key
    parameters = {"key": key, "wait": wait}
    _show(_post(url, ("commands", command), parameters, body, headers), "reply", json=json)


def ask_query(url: str, query: str, key: str, body: str, *, at_least: str, token: str, json: bool) -> None:
    parameters = {"key": key, **({"at_least": at_least} if at_least else {})}
    _show(_post(url, ("queries", query), parameters, body, _authorization(token)), "answer", json=json)


def look_into(url: str, model: str, place: str, *, limit: int | None, cursor: str, at_least: str, json: bool) -> None:
    with reaching(url):
        app = the_app(url)
        name_of_place = app["read_models"][_known(app, "read_models", model)]
        asked = {name_of_place: place, "limit": limit, "cursor": cursor, "at_least": at_least}
        parameters = urlencode({name: value for name, value in asked.items() if value})
        status, content = exchange(f"{url}/api/{app['app']}/read_models/{model}?{parameters}", None, {})
    found = succeeded(status, content)
    if json:
        say_json(found)
        return
    positions = found.pop("positions")
    cursor = found.pop("cursor", None)
    say(json_module.dumps(found.get("rows", found), indent=2, ensure_ascii=False))
    if cursor:
        say(f"cursor {cursor}")
    say(f"positions {','.join(positions)}")


def _post(
    url: str, asked: tuple[str, str], parameters: dict[str, str], body: str, headers: dict[str, str]
) -> dict[str, Any]:
    with reaching(url):
        path = _path(url, *asked)
        status, content = exchange(f"{url}{path}?{urlencode(parameters)}", body.encode(), headers)
    return succeeded(status, content)


@contextmanager
def reaching(url: str) -> Iterator[None]:
    """Whatever shows inside that no app is there becomes `Unavailable`."""
    try:
        yield
    except (URLError, TimeoutError, ValueError) as problem:
        why = getattr(problem, "reason", problem)
        raise Unavailable(f"No app answers at {url} ({why}): is `engram run` running there?") from None


def succeeded(status: int, content: Any) -> dict[str, Any]:
    """The content of a success; raises what a problem stands for otherwise."""
    if status < 400:
        return dict(content)
    detail = str(content["detail"])
    if status == 409 and "code" in content:
        raise Rejected(content["code"], detail)
    if status in (401, 403):
        raise Unauthenticated(detail) if status == 401 else Denied(detail)
    if status == 500:
        raise Quarantined(detail)
    raise Unavailable(detail) if status > 500 or status == 429 else Misuse(detail)


def exchange(
    url: str, body: bytes | None, headers: dict[str, str], method: str | None = None, *, seconds: float = _TIMEOUT_S
) -> tuple[int, Any]:
    """Status and content of an answer; `method` is GET, or POST with a body, unless it is said. For `reaching`.

    The token is the one that ENGRAM_TOKEN holds, unless the headers have one.
    """
    if not url.startswith(("http://", "https://")):
        raise Misuse(f"{url} is not the address of a gateway: write http://HOST:PORT.")
    headers = {**_authorization(os.environ.get("ENGRAM_TOKEN", "")), **headers}
    request = Request(url, data=body, headers=headers, method=method)  # noqa: S310 - checked above
    # A gateway is on loopback, or a proxy in front of it is named by its own address.
    opener = build_opener(ProxyHandler({}))
    try:
        with opener.open(request, timeout=seconds) as response:
            return response.status, json_module.load(response)
    except HTTPError as problem:
        return problem.code, json_module.load(problem)


def the_app(url: str) -> dict[str, Any]:
    """What the app at an address says of itself: its name, and those of its commands and queries. For `reaching`."""
    _, (app,) = exchange(f"{url}/api", None, {})
    return dict(app)


def _authorization(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


def _path(url: str, kind: str, name: str) -> str:
    app = the_app(url)
    return f"/api/{app['app']}/{app[kind][_known(app, kind, name)]}/{kind}/{name}"


def _known(app: dict[str, Any], kind: str, name: str) -> str:
    names: dict[str, str] = app[kind]
    if name not in names:
        near = get_close_matches(name, names, n=3, cutoff=0.5)
        hint = f"Did you mean {', '.join(near)}?" if near else f"It has: {', '.join(sorted(names)) or 'none'}."
        raise Misuse(f"App {app['app']} has no {_KINDS[kind]} {name!r}. {hint}")
    return name


def _show(content: dict[str, Any], what: str, *, json: bool) -> None:
    if json:
        say_json(content)
        return
    if what in content:
        say(json_module.dumps(content[what], indent=2, ensure_ascii=False))
    say(f"position {content['position']}")
    if "token" in content:
        say(f"token {content['token']}")
