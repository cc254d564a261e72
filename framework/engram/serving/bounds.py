"""Bounds: what a read is to include, as a request says it, and what its response gives out to be said next time."""

from __future__ import annotations

from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from engram.errors import EngramError, Foreign, Misuse
from engram.log.base import Log
from engram.model.position import Position
from engram.model.sealed import MARK
from engram.model.token import Token

COOKIE = "engram-token"
# Browsers keep no cookie above 4096 bytes, with its name and attributes.
_COOKIE_BYTES = 3500


class Bound(NamedTuple):
    """What a read is to include. A browser's cookie is not `explicit`: it must not make a request fail."""

    token: Token
    explicit: bool


class Bounds:
    """Reads bounds from requests and writes tokens to responses, for one app.

    Browsers get a cookie that holds all that they have seen, and need not know of it. They are told by the headers that
    all of them send and no script can (`Sec-Fetch-Site`), so that other clients are not bothered with it. Of responses
    that are under way at once the last one's cookie stays: who sends without waiting carries the header himself.
    """

    def __init__(self, log: Log) -> None:
        self._app = log.app
        self._partitions = log.partitions
        self._base = log.base

    def of(self, *positions: Position) -> Token:
        """The token that covers these positions."""
        return Token.of(self._app, self._partitions, positions)

    def asked(self, request: Request, parameter: str | None) -> Bound:
        """What the parameter says, or the header, or else the cookie.

        A parameter or header has tokens and positions, with commas. Raises `Foreign` for a token that is not whole or
        of another app, and `Misuse` for a position that is none.
        """
        text = request.headers.get("engram-at-least") if parameter is None else parameter
        if text is None:
            return Bound(self._kept(request), explicit=False)
        bound = self.of()
        for part in filter(None, map(str.strip, text.split(","))):
            bound |= self._own(part) if MARK in part else self._at(part)
        return Bound(bound, explicit=True)

    def carry(self, request: Request, response: Response, token: Token, *, kept: bool = True) -> Response:
        """The response, with its token. Unless `kept`, a cookie's former token is forgotten."""
        response.headers["Engram-Token"] = str(token)
        if "sec-fetch-site" in request.headers or COOKIE in request.cookies:
            merged = str(self._kept(request) | token if kept else token)
            # Too much to remember: then at least what was just seen.
            value = merged if len(merged) <= _COOKIE_BYTES else str(token)
            https = request.url.scheme == "https"
            path = f"/api/{self._app}"
            response.set_cookie(COOKIE, value, path=path, secure=https, httponly=True, samesite="strict")
        return response

    def _own(self, text: str) -> Token:
        token = Token.parse(text)
        token.check(self._app, self._partitions)
        self._check_begun(token, Foreign)
        return token

    def _at(self, text: str) -> Token:
        try:
            position = Position.parse(text)
        except Misuse as problem:
            raise Misuse(f"{problem}; or give a token, as Engram-Token has it.") from None
        if position.partition >= self._partitions:
            raise Misuse(f"There is no partition {position.partition}: the log has 0 to {self._partitions - 1}.")
        token = self.of(position)
        self._check_begun(token, Misuse)
        return token

    def _check_begun(self, token: Token, kind: type[EngramError]) -> None:
        """What was before the log's base is in other partitions now, and at other offsets if it was not handled yet."""
        for partition, offset in token.offsets.items():
            if offset < self._base:
                raise kind(
                    f"Record {offset} of partition {partition} is of the log before its number of partitions was "
                    f"changed: this one begins at record {self._base}. Ask without it."
                )

    def _kept(self, request: Request) -> Token:
        try:
            return self._own(request.cookies.get(COOKIE, ""))
        except Foreign:
            return self.of()
