"""`engram send` and `engram ask`: one request to a running app, by names alone."""

from __future__ import annotations

import json as json_module
from difflib import get_close_matches
from typing import Any

import httpx

from engram.cli.output import say, say_json
from engram.errors import Misuse, Quarantined, Rejected, Unavailable


def send_command(
    url: str, command: str, key: str, body: str, *, idempotency_key: str | None, wait: bool, json: bool
) -> None:
    headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
    parameters = {"key": key, "wait": "reply" if wait else "log"}
    content = _post(url, "commands", command, parameters, body, headers)
    _show(content, "reply", json=json)


def ask_query(url: str, query: str, key: str, body: str, *, at_least: str, json: bool) -> None:
    parameters = {"key": key, **({"at_least": at_least} if at_least else {})}
    _show(_post(url, "queries", query, parameters, body, {}), "answer", json=json)


def _post(
    url: str, kind: str, name: str, parameters: dict[str, str], body: str, headers: dict[str, str]
) -> dict[str, Any]:
    with httpx.Client(base_url=url, timeout=30, trust_env=False) as http:
        try:
            path = _path(http, kind, name)
            response = http.post(path, params=parameters, content=body.encode(), headers=headers)
        except httpx.TransportError as problem:
            raise Unavailable(f"No app answers at {url} ({problem}): is `engram run` running there?") from None
    content: dict[str, Any] = response.json()
    if response.is_success:
        return content
    detail = str(content.get("detail", response.text))
    if response.status_code == 409:
        raise Rejected(content["code"], detail)
    if response.status_code == 500:
        raise Quarantined(detail)
    raise Unavailable(detail) if response.status_code > 500 else Misuse(detail)


def _path(http: httpx.Client, kind: str, name: str) -> str:
    (app,) = http.get("/api").json()
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
