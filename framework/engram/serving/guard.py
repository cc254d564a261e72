"""Before a request is answered: is there room, who is it, is it too much, and may they."""

from __future__ import annotations

import hashlib
import math
from collections.abc import AsyncGenerator, Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from engram.errors import Denied, EngramError, Unauthenticated
from engram.model.guarded import Guarded
from engram.model.principal import ANONYMOUS, Principal, Rule, allow
from engram.serving.access import Access, LimitSettings
from engram.serving.authentication import Authenticator
from engram.serving.expiry import until_expired
from engram.serving.limits import Buckets
from engram.serving.metrics import Metrics
from engram.serving.problems import of_error, problem

Endpoint = Callable[[Request], Awaitable[Response]]


class _TooMany(Exception):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds


class Guard:
    """Stands before every route. Without an access file everybody may everything, as long as there is room.

    A token that is not good is refused on every route but open ones, even where none is needed.
    """

    def __init__(self, access: Access | None, *, app: str, metrics: Metrics) -> None:
        limits = LimitSettings() if access is None else access.limits
        self._authenticator = None if access is None else Authenticator(access)
        self._buckets = Buckets(rate=limits.requests_per_second, burst=limits.burst)
        self._in_flight = 0
        self._most_in_flight = limits.in_flight
        self._app = app
        self._metrics = metrics
        metrics.in_flight.set_function(lambda: self._in_flight)  # when somebody looks, and not with every request
        self.body_bytes = limits.body_bytes

    @property
    def closed(self) -> bool:
        """Whether there is authentication."""
        return self._authenticator is not None

    def before(self, endpoint: Endpoint, rule: Rule | None, *, always: bool = False) -> Endpoint:
        """The endpoint for those whom the rule lets; without a rule for all, known or not. `always`: even when there is
        no room, because that is what it tells."""

        async def guarded(request: Request) -> Response:
            if self._in_flight >= self._most_in_flight and not always:
                return self._overloaded()
            self._in_flight += 1
            try:
                await self._admit(request, rule)
                return await endpoint(request)
            except _TooMany as much:
                return self._too_many(much.seconds)
            except Denied as error:
                return self._denied(error, request)
            except EngramError as error:  # nobody can tell now whose token it is
                return of_error(error)
            finally:
                self._in_flight -= 1

        return guarded

    def check(self, principal: Principal | None, asked: Guarded, key: str) -> None:
        """Raises `Denied` when the principal may not send or ask this for the entity of that key; None, when nobody is
        asked who they are, may."""
        if principal is None or asked.authorize(principal, key):
            return
        name = asked.__engram__.name
        if not asked.says_who():
            raise Denied(f"{name} does not say who may: give its class an authorize=, such as allow.owner.")
        raise Denied(f"{name} for {key!r} is not for {principal.name or 'everybody'}.")

    def charge(self, request: Request, requests: int) -> None:
        """Counts a request that was let in as so many. It is not refused: the next one of the same principal waits."""
        if request.state.counted is not None:
            self._buckets.owe(request.state.counted, requests - 1)

    def refusal(self, error: Denied, request: Request) -> Denied:
        """What one who may not is told: those who have not said who they are could do so."""
        principal: Principal | None = request.state.principal
        if principal is not None and principal.known:
            self._metrics.refused("denied")
            return error
        self._metrics.refused("unauthenticated")
        return Unauthenticated(f"{error} Send a token that is good, as Authorization: Bearer TOKEN.")

    def stream(self, request: Request, events: AsyncGenerator[bytes]) -> Response:
        """A response of server-sent events, for as long as the token is good that it was asked for with."""
        principal: Principal | None = request.state.principal
        seconds = None if self._authenticator is None or principal is None else self._authenticator.lasts(principal)
        if seconds is not None:
            events = until_expired(events, seconds, lambda: self._metrics.dropped("expired"))
        return StreamingResponse(events, headers={"Cache-Control": "no-store"}, media_type="text/event-stream")

    async def _admit(self, request: Request, rule: Rule | None) -> None:
        request.state.principal = request.state.counted = None
        if self._authenticator is None or rule is None:
            return
        principal = request.state.principal = await self._authenticated(request, self._authenticator)
        request.state.counted = f"name {principal.name}" if principal.known else _address(request)
        self._count(request.state.counted)
        if not rule(principal, ""):
            raise Denied(f"{request.method} {request.url.path} is not for {principal.name or 'everybody'}.")

    async def _authenticated(self, request: Request, authenticator: Authenticator) -> Principal:
        header = request.headers.get("authorization")
        if header is None:
            return ANONYMOUS
        try:
            scheme, _, token = header.partition(" ")
            if scheme.lower() != "bearer":
                raise Unauthenticated("The Authorization header must be: Bearer TOKEN.")
            return await authenticator.authenticate(token.strip())
        except Unauthenticated:
            self._count(_address(request))  # trying tokens out is limited too
            raise

    def _count(self, name: str) -> None:
        seconds = self._buckets.take(name)
        if seconds:
            raise _TooMany(seconds)

    def _overloaded(self) -> Response:
        self._metrics.refused("overloaded")
        text = f"There are {self._in_flight:,} requests under way, and no room for more. Nothing was done: try again."
        return problem(503, "overloaded", text)

    def _too_many(self, seconds: float) -> Response:
        self._metrics.refused("too_many")
        response = problem(429, "too_many_requests", f"Too many requests: the next one fits in {seconds:.2f} s.")
        response.headers["Retry-After"] = str(math.ceil(seconds))
        return response

    def _denied(self, error: Denied, request: Request) -> Response:
        refusal = self.refusal(error, request)
        response = of_error(refusal)
        if isinstance(refusal, Unauthenticated):
            invalid = ', error="invalid_token"' if "authorization" in request.headers else ""
            response.headers["WWW-Authenticate"] = f'Bearer realm="{self._app}"{invalid}'
        return response


def scoped(principal: Principal | None, name: str) -> str:
    """The name of a session or an idempotency key, as that of the principal: nobody gets at another's replies."""
    if principal is None:
        return name
    return f"{hashlib.sha256(principal.name.encode(errors='replace')).hexdigest()[:16]}.{name}"


EVERYBODY = allow.anyone
OPERATORS = allow.operator


def _address(request: Request) -> str:
    return f"address {request.client.host if request.client else ''}"
