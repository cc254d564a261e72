"""Routes whose paths have no parts to read, found by one look into a table."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from engram.serving.guard import Endpoint


class ExactPaths:
    """Stands before the framework's own routes, which it asks one after the other whether a path is theirs: an app with
    fifty commands would pay for that with every request. What is not in the table goes on to them.

    The table is by method and path; what is put into it later counts too.
    """

    def __init__(self, app: ASGIApp, *, table: Mapping[tuple[str, str], Endpoint]) -> None:
        self._app = app
        self._table = table

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self._table.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if endpoint is None:
            await self._app(scope, receive, send)
            return
        response = await endpoint(Request(scope, receive, send))
        await response(scope, receive, send)
