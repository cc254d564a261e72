"""A client's line to a gateway: it tries again while there is hope, and remembers what was seen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import aiohttp

from engram.errors import Behind, Unavailable, Unsettled
from engram.model.position import Position
from engram.model.token import Token
from engram.serving.messages import ServerSent, server_sent
from engram.serving.raised import content_of, read_success

T = TypeVar("T")
Content = dict[str, Any]

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
# The server answers within the timeout; this much more covers the way there and back.
_GRACE_S = 5.0
# The gateway waits no longer for the next event.
LONGEST_WAIT_S = 60.0
# A token of a thousand partitions takes some 12,000 bytes, and must be read.
_HEADER_BYTES = 64 * 1024


class HttpLine:
    """Made for one app at a `base` address; used on one event loop, from many tasks at once.

    `timeout` is how long the gateway may take for an answer, `patience` for how long is tried again. `seen` is the
    token of everything that came back. Raises the exceptions that problems stand for.
    """

    def __init__(self, base: str, *, timeout: float, patience: float, headers: dict[str, str]) -> None:
        self._base = base
        self.timeout = timeout
        self._patience = patience
        self._headers = headers
        self._session: aiohttp.ClientSession | None = None  # made on first use, on the loop that uses it
        self.seen: Token | None = None

    @property
    def seconds(self) -> dict[str, str]:
        """The parameter that says how long the gateway may take."""
        return {"timeout": f"{self.timeout:g}"}

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def at_least(self, more: Position | Token | None) -> dict[str, str]:
        """The header that asks for all that was seen, and for more."""
        bounds = [bound for bound in (self.seen, more) if bound is not None]
        return {"Engram-At-Least": ",".join(map(str, bounds))} if bounds else {}

    async def post(
        self,
        path: str,
        parameters: dict[str, str],
        body: str | bytes,
        headers: dict[str, str],
        read: Callable[[bytes], T],
    ) -> T:
        """What `read` makes of the answer's body. It may raise `Unavailable` to have the same sent again."""
        parameters = {**parameters, **self.seconds}

        async def attempt() -> T:
            async with self._http().post(self._at(path), params=parameters, data=body, headers=headers) as response:
                self._note(response)  # of a rejection too: it tells something of the state
                return read_success(response.status, await response.read(), read)

        return await self._patiently(attempt)

    async def get(self, path: str, parameters: list[tuple[str, str]], headers: dict[str, str] | None = None) -> Content:
        return await self._patiently(partial(self.get_once, path, parameters, headers))

    async def get_once(
        self, path: str, parameters: list[tuple[str, str]], headers: dict[str, str] | None = None
    ) -> Content:
        async with self._http().get(self._at(path), params=parameters, headers=headers) as response:
            content = content_of(response.status, await response.read())
        self._note(response)
        return content

    async def once(
        self, method: str, path: str, parameters: dict[str, str], *, seconds: float | None = None
    ) -> Content:
        """For what must not be sent again; with a time of its own for the answer."""
        how: Any = {} if seconds is None else {"timeout": aiohttp.ClientTimeout(total=seconds + _GRACE_S)}
        try:
            async with self._http().request(method, self._at(path), params=parameters, **how) as response:
                content = content_of(response.status, await response.read())
        except (aiohttp.ClientError, TimeoutError) as problem:
            raise Unavailable(f"{self._base} could not be reached: {problem!r}") from problem
        self._note(response)
        return content

    async def streamed(
        self, method: str, path: str, parameters: dict[str, str], *, body: str | None = None
    ) -> AsyncGenerator[ServerSent]:
        """Server-sent events without end: after a lost connection those that were missed."""
        last = ""
        while True:
            stream = await self._patiently(partial(self._stream, method, path, parameters, last, body))
            try:
                async with stream:
                    async for message in server_sent(stream.content.iter_any()):
                        last = message.id or last
                        yield message
            except (aiohttp.ClientError, TimeoutError):
                continue  # and come back for what was missed

    async def _stream(
        self, method: str, path: str, parameters: dict[str, str], last: str, body: str | None
    ) -> aiohttp.ClientResponse:
        headers = {**self.at_least(None), "Accept": "text/event-stream", **({"Last-Event-ID": last} if last else {})}
        parameters = {**parameters, **self.seconds}
        # Something is said every few seconds, but it never ends.
        timeout = aiohttp.ClientTimeout(total=None, sock_read=LONGEST_WAIT_S)
        response = await self._http().request(
            method, self._at(path), params=parameters, data=body, headers=headers, timeout=timeout
        )
        if response.status >= 400:
            async with response:
                content_of(response.status, await response.read())
        return response

    async def _patiently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """What `attempt` returns, tried again while the gateway cannot be reached or says that it cannot now."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._patience
        pause = _FIRST_PAUSE_S
        while True:
            try:
                return await attempt()
            except (aiohttp.ClientError, TimeoutError) as problem:
                failure = Unavailable(f"{self._base} could not be reached: {problem!r}")
            except (Behind, Unsettled):
                raise
            except Unavailable as problem:
                failure = problem
            if clock() + pause > deadline:
                raise failure
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            # No limit of connections: a command waits for its reply, and a query behind it must not wait too.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=self.timeout + _GRACE_S),
                max_field_size=_HEADER_BYTES,
            )
        return self._session

    def _at(self, path: str) -> str:
        return f"{self._base}/{path}" if path else self._base

    def _note(self, response: aiohttp.ClientResponse) -> None:
        text = response.headers.get("Engram-Token")
        if text:
            token = Token.parse(text)
            # An app that was made anew with other partitions has nothing of what was seen before.
            seen = self.seen
            self.seen = token if seen is None or seen.partitions != token.partitions else seen | token
