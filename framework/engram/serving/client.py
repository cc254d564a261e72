"""The typed client: commands and queries over HTTP, with their own reply and answer types."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import deque
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp
from pydantic import TypeAdapter

from engram.codec.codec import result_adapter
from engram.errors import Behind, Corrupt, EngramError, Misuse, Quarantined, Rejected, Unavailable
from engram.model.app import App, entity_of
from engram.model.command import Command
from engram.model.entity import Entity
from engram.model.position import Position
from engram.model.query import Query

R = TypeVar("R")
A = TypeVar("A")
E = TypeVar("E", bound=Entity)

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
# The server answers within the timeout; this much more covers the way there and back.
_GRACE_S = 5.0


class Client:
    """Talks to a running app.

        async with Client("http://127.0.0.1:8080", app) as client:
            await client.send("ada", Follow(whom="bob"))
            card = await client.ask("ada", Profile())

    Safe to use from many tasks at once. A command that got no reply is sent again with the same id, for up to
    `patience` seconds, so it takes effect once. Queries see at least what this client has sent and seen before.
    """

    def __init__(self, url: str, app: App, *, timeout: float = 10.0, patience: float = 30.0) -> None:
        self._base = f"{url.rstrip('/')}/api/{app.name}"
        self._app = app
        self._timeout = timeout
        self._patience = patience
        self._session: aiohttp.ClientSession | None = None  # made on first use, on the loop that uses it
        self._name = secrets.token_hex(8)
        self._opened = 0
        self._free: deque[tuple[str, int]] = deque()
        self._results: dict[type[Any], TypeAdapter[Any]] = {}
        self._seen: dict[int, Position] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.close()

    async def send(self, key: str, command: Command[E, R], *, idempotency_key: str | None = None) -> R:
        """Sends a command and returns its reply, once it is logged and handled.

        Raises `Rejected` if the handler refused, `Quarantined` if it failed, and `Unavailable` if there was no
        word within `patience`; then it is not known whether the command was or will be handled.
        """
        content = await self._send(key, command, "reply", idempotency_key)
        return self._result(type(command), content["reply"])  # type: ignore[no-any-return]  # by the command's type

    async def submit(self, key: str, command: Command[E, R], *, idempotency_key: str | None = None) -> Position:
        """Sends a command and returns its position, once it is logged. It will be handled, whatever crashes."""
        content = await self._send(key, command, "log", idempotency_key)
        return Position.parse(content["position"])

    async def ask(self, key: str, query: Query[E, A], *, at_least: Position | None = None) -> A:
        """Asks a query. The answer includes everything this client has sent or seen, and `at_least`.

        Raises `Behind` if the state did not come that far within the timeout.
        """
        bounds = [*self._seen.values()] if at_least is None else [*self._seen.values(), at_least]
        headers = {"Engram-At-Least": ",".join(map(str, bounds))} if bounds else {}
        path = self._path("queries", query)
        content = await self._post(path, {"key": key}, query.model_dump_json(), headers)
        return self._result(type(query), content["answer"])  # type: ignore[no-any-return]  # by the query's type

    async def status(self, *, digests: bool = False) -> dict[str, Any]:
        """The app's shards and partitions."""
        parameters = {"digests": str(digests).lower()}
        async with self._http().get(self._base, params=parameters) as response:
            return _content(response.status, await response.read())

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            # No limit of connections: a command waits for its reply, and a query behind it must not wait too.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=self._timeout + _GRACE_S),
            )
        return self._session

    async def _send(
        self, key: str, command: Command[Any, Any], wait: str, idempotency_key: str | None
    ) -> dict[str, Any]:
        session, sequence = self._free.popleft() if self._free else self._open_session()
        headers = {"Engram-Session": session, "Engram-Sequence": str(sequence)}
        if idempotency_key is not None:
            headers["Idempotency-Key"] = idempotency_key
        try:
            parameters = {"key": key, "wait": wait}
            return await self._post(self._path("commands", command), parameters, command.model_dump_json(), headers)
        finally:
            # The next command of the session has a greater number, whatever became of this one.
            self._free.append((session, sequence + 1))

    def _open_session(self) -> tuple[str, int]:
        self._opened += 1
        return f"{self._name}.{self._opened}", 0

    async def _post(self, path: str, parameters: dict[str, str], body: str, headers: dict[str, str]) -> dict[str, Any]:
        parameters = {**parameters, "timeout": f"{self._timeout:g}"}
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._patience
        pause = _FIRST_PAUSE_S
        while True:
            try:
                async with self._http().post(path, params=parameters, data=body, headers=headers) as response:
                    content = _content(response.status, await response.read())
            except (aiohttp.ClientError, TimeoutError) as problem:
                failure = Unavailable(f"{self._base} could not be reached: {problem!r}")
            except Behind:
                raise
            except Unavailable as problem:
                failure = problem
            else:
                self._note(response)
                return content
            if clock() + pause > deadline:
                raise failure
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _note(self, response: aiohttp.ClientResponse) -> None:
        token = response.headers.get("Engram-Position")
        if token:
            position = Position.parse(token)
            self._seen[position.partition] = max(position, self._seen.get(position.partition, position))

    def _path(self, kind: str, asked: Command[Any, Any] | Query[Any, Any]) -> str:
        entity = entity_of(type(asked)).__engram__.name
        return f"{self._base}/{entity}/{kind}/{asked.__engram__.name}"

    def _result(self, cls: type[Any], value: Any) -> Any:
        adapter = self._results.get(cls)
        if adapter is None:
            adapter = self._results[cls] = result_adapter(cls)
        return adapter.validate_json(json.dumps(value))  # as JSON, because that is what it was encoded as


def _content(status: int, body: bytes) -> dict[str, Any]:
    """The body of a success; the exception that a problem stands for otherwise."""
    try:
        content: dict[str, Any] = json.loads(body)
        if status < 400:
            return content
        kind, detail = content["type"].rsplit(":", 1)[1], content["detail"]
    except (ValueError, KeyError, IndexError, TypeError):
        raise Unavailable(f"The gateway answered {status}: {body[:200].decode(errors='replace')}") from None
    raise _error(kind, detail, content, status)


def _error(kind: str, detail: str, problem: dict[str, Any], status: int) -> EngramError:
    match kind:
        case "rejected":
            return Rejected(problem["code"], detail if detail != problem["code"] else "")
        case "quarantined":
            return Quarantined(detail)
        case "behind":
            return Behind(detail)
        case "stopped":
            return Corrupt(detail)
        case _:
            return Unavailable(detail) if status >= 500 else Misuse(detail)
