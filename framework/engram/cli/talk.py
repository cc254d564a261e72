"""`engram send` and `engram ask`: one request to a running app, by names alone."""

from __future__ import annotations

import json as json_module
from difflib import get_close_matches
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import ProxyHandler, Request, build_opener

from engram.cli.output import say, say_json
from engram.errors import Misuse, Quarantined, Rejected, Unavailable

_TIMEOUT_S = 30.0


def send_command(
    url: str, command: str, key: str, body: str, *, idempotency_key: str | None, wait: bool, json: bool
) -> None:
    headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
    parameters = {"key": key, "wait": "reply" if wait else "log"}
    _show(_post(url, ("commands", command), parameters, body, headers), "reply", json=json)


def ask_query(url: str, query: str, key: str, body: str, *, at_least: str, json: bool) -> None:
    parameters = {"key": key, **({"at_least": at_least} if at_least else {})}
    _show(_post(url, ("queries", query), parameters, body, {}), "answer", json=json)


def _post(
    url: str, asked: tuple[str, str], parameters: dict[str, str], body: str, headers: dict[str, str]
) -> dict[str, Any]:
    try:
        path = _path(url, *asked)
        status, content = _exchange(f"{url}{path}?{urlencode(parameters)}", body.encode(), headers)
    except (URLError, TimeoutError, ValueError) as problem:
        why = getattr(problem, "reason", problem)
        raise Unavailable(f"No app answers at {url} ({why}): is `engram run` running there?") from None
    if status < 400:
        return dict(content)
    detail = str(content["detail"])
    if status == 409:
        raise Rejected(content["code"], detail)
    if status == 500:
        raise Quarantined(detail)
    raise Unavailable(detail) if status > 500 else Misuse(detail)


def _exchange(url: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, Any]:
    if not url.startswith(("http://", "https://")):
        raise Misuse(f"{url} is not the address of a gateway: write http://HOST:PORT.")
    request = Request(url, data=body, headers=headers)  # noqa: S310 - checked above
    # A gateway is on loopback, or a proxy in front of it is named by its own address.
    opener = build_opener(ProxyHandler({}))
    try:
        with opener.open(request, timeout=_TIMEOUT_S) as response:
            return response.status, json_module.load(response)
    except HTTPError as problem:
        return problem.code, json_module.load(problem)


def _path(url: str, kind: str, name: str) -> str:
    _, (app,) = _exchange(f"{url}/api", None, {})
    names: dict[str, str] = app[kind]
    if name not in names:
        near = get_close_matches(name, names, n=3, cutoff=0.5)
        hint = f"Did you mean {', '.join(near)}?" if near else f"It has: {', '.join(sorted(names))}."
        raise Misuse(f"App {app['app']} has no {'command' if kind == 'commands' else 'query'} {name!r}. {hint}")
    return f"/api/{app['app']}/{names[name]}/{kind}/{name}"


def _show(content: dict[str, Any], what: str, *, json: bool) -> None:
    if json:
        say_json(content)
        return
    if what in content:
        say(json_module.dumps(content[what], indent=2, ensure_ascii=False))
    say(f"position {content['position']}")
