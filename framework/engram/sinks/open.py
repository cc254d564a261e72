"""Sinks by URL: `sqlite:PATH?table=events`, `https://HOST/PATH` or `http://HOST/PATH`.

What is behind the `#` of a webhook's address stays here: `#secret=NAME` names the environment variable with its
secret, `#batch=50` sends up to so many events in one request.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, urlsplit

from engram.errors import Misuse
from engram.sinks.base import Sink
from engram.sinks.signature import parse_secrets

SECRET = "ENGRAM_WEBHOOK_SECRET"  # noqa: S105 - the variable's name
_MAX_BATCH = 1000
_NEW_SECRET = "whsec_$(head -c 32 /dev/urandom | base64 -w 0)"  # noqa: S105 - how to make one


def open_sink(url: str, app: str, *, allow_private: bool = False, environment: Mapping[str, str] = os.environ) -> Sink:
    """The sink that a URL names for an app. Nothing is made or sent yet.

    Raises `Misuse` for what is none, for an address inside unless `allow_private`, and for a webhook without a secret.
    """
    scheme, _, place = url.partition(":")
    if scheme == "sqlite" and place.partition("?")[0]:
        return _sqlite(url, place, app)
    if not url.isascii() or not url.isprintable() or " " in url:
        raise Misuse(f"{_without_secrets(url)!r} has characters that no address has: write them as %.. or xn--..")
    try:
        parts = urlsplit(url)
        if scheme in ("http", "https") and parts.hostname:
            return _webhook(parts, app, allow_private=allow_private, environment=environment)
    except ValueError as problem:
        raise Misuse(f"{_without_secrets(url)} is not an address: {problem}.") from problem
    raise Misuse(f"{_without_secrets(url)!r} is not a sink: write sqlite:PATH?table=NAME or https://HOST/PATH.")


def _sqlite(url: str, place: str, app: str) -> Sink:
    from engram.sinks.sqlite import SqliteSink

    path, _, query = place.partition("?")
    options = _options(url, query, {"table"})
    return SqliteSink(Path(path).expanduser().absolute(), app, table=options.get("table", "events"))


def _webhook(parts: SplitResult, app: str, *, allow_private: bool, environment: Mapping[str, str]) -> Sink:
    from engram.sinks.webhook import Receiver, WebhookSink

    host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else parts.hostname
    name = f"{parts.scheme}://{host}{f':{parts.port}' if parts.port else ''}{parts.path}"
    if parts.username is not None or parts.password is not None:
        raise Misuse(f"{name} has a user or password in it, which reports would show: leave them out.")
    options = _options(name, parts.fragment, {"secret", "batch"})
    batch = options.get("batch", "1")
    if not batch.isdecimal() or not 1 <= int(batch) <= _MAX_BATCH:
        raise Misuse(f"{name}: batch={batch} is not a number from 1 to {_MAX_BATCH}.")
    variable = options.get("secret", SECRET)
    if not environment.get(variable):
        raise Misuse(f"{name} needs a secret to sign with: set {variable}, such as {variable}={_NEW_SECRET}")
    target = parts.path or "/"
    receiver = Receiver(
        # What the query says may be secret, but makes it another receiver.
        name=f"{name}?{sha256(parts.query.encode()).hexdigest()[:8]}" if parts.query else name,
        secure=parts.scheme == "https",
        host=str(parts.hostname),
        port=parts.port or (443 if parts.scheme == "https" else 80),
        path=f"{target}?{parts.query}" if parts.query else target,
        secrets=parse_secrets(environment[variable]),
        allow_private=allow_private,
        batch=int(batch),
    )
    return WebhookSink(receiver, app)


def _options(of: str, text: str, known: set[str]) -> dict[str, str]:
    options = dict(parse_qsl(text, keep_blank_values=True))
    strange = sorted(options.keys() - known)
    if strange:
        raise Misuse(f"{of}: unknown option {', '.join(strange)}; there are {', '.join(sorted(known))}.")
    return options


def _without_secrets(url: str) -> str:
    """An address as far as it can be shown: with neither user nor query."""
    head, _, tail = url.partition("#")[0].partition("?")[0].partition("//")
    return f"{head}//{tail.rpartition('@')[2]}" if tail else head
