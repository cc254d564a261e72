"""The typed client: commands and queries over HTTP, with their own reply and answer types."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, overload

import aiohttp
from pydantic import TypeAdapter

from engram.codec.codec import Codec
from engram.codec.values import adapter_of, result_adapter
from engram.errors import (
    Ahead,
    Behind,
    Corrupt,
    Denied,
    EngramError,
    Foreign,
    Gap,
    Misuse,
    Quarantined,
    Rejected,
    Unauthenticated,
    Unavailable,
    Unsettled,
)
from engram.model.app import App, entity_of
from engram.model.command import Broadcast, Command
from engram.model.entity import EVERYWHERE, Entity, Shared
from engram.model.event import Event
from engram.model.position import Position
from engram.model.query import Query
from engram.model.read_model import Lookup, Ranked, Ranking, ReadModel, Search, Tally, Totals, place_of, row_of
from engram.model.token import Token
from engram.serving.asking import AskingSpans
from engram.serving.failed import Dropped, FailedCommandDetail, FailedCommands, Retried
from engram.serving.messages import server_sent
from engram.serving.rows import Rows
from engram.serving.taken import SnapshotsTaken
from engram.serving.topic import refusal

R = TypeVar("R")
A = TypeVar("A")
T = TypeVar("T")
E = TypeVar("E", bound=Entity)
S = TypeVar("S", bound=Shared)
Wait = Literal["reply", "effects"]

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
# The server answers within the timeout; this much more covers the way there and back.
_GRACE_S = 5.0
# The gateway waits no longer for the next event.
_LONGEST_WAIT_S = 60.0
# A token of a thousand partitions takes some 12,000 bytes, and must be read.
_HEADER_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class EventReceived:
    """An event and where it comes from. `cursor` is where to go on after it: keep it with what you made of the event.

    `id` is its own for ever: doubles, if you ever go back, have the same. `cause` is the position of the command that
    emitted it, `root` of the one that began the chain, `key` the entity's.
    """

    event: Event
    id: str
    key: str
    time: datetime
    cause: str
    root: str | None
    cursor: str


class Client:
    """Talks to a running app.

        async with Client("http://127.0.0.1:8080", app) as client:
            await client.send("ada", Follow(whom="bob"))
            card = await client.ask("ada", Profile())

    Safe to use from many tasks at once. A command that got no reply is sent again with the same id, for up to
    `patience` seconds, so it takes effect once. Queries see at least what this client has sent and seen before.
    `token` says who sends and asks, where the app wants to know; raises `Denied` if they may not.
    """

    def __init__(
        self, url: str, app: App, *, timeout: float = 10.0, patience: float = 30.0, token: str | None = None
    ) -> None:
        self._base = f"{url.rstrip('/')}/api/{app.name}"
        self._app = app
        self._timeout = timeout
        self._patience = patience
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._session: aiohttp.ClientSession | None = None  # made on first use, on the loop that uses it
        self._name = secrets.token_hex(8)
        self._opened = 0
        self._free: deque[tuple[str, int]] = deque()
        self._results: dict[type[Any], TypeAdapter[Any]] = {}
        self._seen: Token | None = None
        self._spans = AskingSpans.made()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.close()

    async def send(
        self, key: str, command: Command[E, R], *, wait: Wait = "reply", idempotency_key: str | None = None
    ) -> R:
        """Sends a command and returns its reply, once it is logged and handled; with `wait="effects"` once all messages
        that it led to are handled too, wherever they went, so that queries of this client see them. Timers that were
        scheduled are not waited for.

        Raises `Rejected` if the handler refused, `Quarantined` if it failed, and `Unavailable` if there was no
        word within `patience`; then it is not known whether the command was or will be handled. `Unsettled` means that
        it was, and that of its effects this is not known: they may be on their way.
        """
        content = await self._send(key, command, wait, idempotency_key)
        return self._result(type(command), content["reply"])  # type: ignore[no-any-return]  # by the command's type

    async def broadcast(
        self, command: Broadcast[S, R], *, wait: Wait = "reply", idempotency_key: str | None = None
    ) -> R:
        """Sends a command for a shared object, and returns its reply. Every partition handles it in its turn, in the
        same order as all broadcasts; some may do so shortly after this returns, unless `wait="effects"`."""
        return await self.send(EVERYWHERE, command, wait=wait, idempotency_key=idempotency_key)

    async def submit(self, key: str, command: Command[E, R], *, idempotency_key: str | None = None) -> Position:
        """Sends a command and returns its position, once it is logged. It will be handled, whatever crashes."""
        content = await self._send(key, command, "log", idempotency_key)
        return Position.parse(content["position"])

    @property
    def token(self) -> Token | None:
        """All that this client has sent and seen: give it to others as `at_least`, and they see it too."""
        return self._seen

    async def ask(self, key: str, query: Query[E, A], *, at_least: Position | Token | None = None) -> A:
        """Asks a query. The answer includes everything this client has sent or seen, and `at_least`.

        Raises `Behind` if the state did not come that far within the timeout, and `Ahead` if the log does not have it
        any more, because it was restored from a backup: then begin with a new client.
        """
        path = self._path("queries", query)
        with self._spans.around("ask", query.__engram__.name or "", key):
            content = await self._post(path, {"key": key}, query.model_dump_json(), self._at_least(at_least))
        return self._result(type(query), content["answer"])  # type: ignore[no-any-return]  # by the query's type

    async def look_up(
        self,
        model: type[Lookup[E, A]],
        key: str,
        *,
        limit: int = 100,
        after: str | None = None,
        at_least: Position | Token | None = None,
    ) -> Rows[A]:
        """The rows of a key, up to `limit`; after those of an earlier answer's `cursor` if one is given.

            followers = await client.look_up(Followers, "bob")

        As every read: it includes everything this client has sent or seen, and `at_least`, in all partitions. Raises
        `Unavailable` while the read model is being built, and `Quarantined` if it is broken.
        """
        return await self._look(model, key, limit, after, at_least)  # type: ignore[no-any-return]  # by its type

    async def top(
        self,
        model: type[Ranking[E, A]],
        board: str,
        limit: int = 10,
        *,
        after: str | None = None,
        at_least: Position | Token | None = None,
    ) -> Rows[Ranked[A]]:
        """The rows with the highest scores, up to `limit`, and their scores."""
        return await self._look(model, board, limit, after, at_least)  # type: ignore[no-any-return]  # by its type

    async def search(
        self,
        model: type[Search[E, A]],
        words: str,
        limit: int = 10,
        *,
        after: str | None = None,
        at_least: Position | Token | None = None,
    ) -> Rows[A]:
        """The rows whose texts have all of the words, the most relevant first."""
        return await self._look(model, words, limit, after, at_least)  # type: ignore[no-any-return]  # by its type

    async def tally(self, model: type[Tally[E]], group: str, *, at_least: Position | Token | None = None) -> Totals:
        """Count, sum, least and greatest of a group; a count of 0 if nothing is in it."""
        return await self._look(model, group, None, None, at_least)  # type: ignore[no-any-return]  # by its type

    @overload
    def watch(self, what: str, of: Query[E, A], /) -> AsyncIterator[A]: ...
    @overload
    def watch(self, what: type[Lookup[E, A]], of: str, /, *, limit: int = ...) -> AsyncIterator[Rows[A]]: ...
    @overload
    def watch(self, what: type[Ranking[E, A]], of: str, /, *, limit: int = ...) -> AsyncIterator[Rows[Ranked[A]]]: ...
    @overload
    def watch(self, what: type[Search[E, A]], of: str, /, *, limit: int = ...) -> AsyncIterator[Rows[A]]: ...
    @overload
    def watch(self, what: type[Tally[E]], of: str, /) -> AsyncIterator[Totals]: ...

    def watch(self, what: Any, of: Any, /, *, limit: int | None = None) -> AsyncIterator[Any]:
        """The answer of a query, or what a read model has at a place, and again after every change, without end.

            async for card in client.watch("ada", Profile()): ...
            async for ranked in client.watch(MostFollowed, "everybody", limit=3): ...

        The first includes everything this client has sent or seen. Of a read model each is what its read gives: the
        first `limit` rows (10, or 100 of a lookup; 1,000 at most), or the totals. A lost connection or a shard that
        moves is not seen; what cannot be found out any more afterwards comes as one change. Raises what the query
        raises, `Quarantined` if the read model is broken, `Unavailable` after no word within `patience`, and
        `Unauthenticated` when the token has expired.
        """
        if isinstance(of, Query):
            path, body = self._path("queries", of), of.model_dump_json()
            asked = partial(self._stream, "POST", path, {"key": what}, body=body)
            return self._changes(asked, lambda content: self._result(type(of), content["answer"]))
        rows = limit or (100 if issubclass(what, Lookup) else 10)
        parameters = {place_of(what): of, **({} if issubclass(what, Tally) else {"limit": str(rows)})}
        asked = partial(self._stream, "GET", self._model_path(what), parameters)
        return self._changes(asked, partial(self._read, what))

    async def _changes(
        self, asked: Callable[[str], Awaitable[aiohttp.ClientResponse]], read: Callable[[Any], T]
    ) -> AsyncIterator[T]:
        last = ""
        while True:
            stream = await self._patiently(partial(asked, last))
            try:
                async with stream:
                    async for message in server_sent(stream.content.iter_any()):
                        last = message.id or last
                        content = json.loads(message.data)
                        if message.event == "refused":
                            raise refusal(content["refused"])
                        if message.event == "answer":
                            yield read(content)
            except (aiohttp.ClientError, TimeoutError):
                continue  # and come back for what was missed

    async def _stream(
        self, method: str, path: str, parameters: dict[str, str], last: str, *, body: str | None = None
    ) -> aiohttp.ClientResponse:
        headers = {**self._at_least(None), "Accept": "text/event-stream", **({"Last-Event-ID": last} if last else {})}
        parameters = {**parameters, "timeout": f"{self._timeout:g}"}
        # Something is said every few seconds, but it never ends.
        timeout = aiohttp.ClientTimeout(total=None, sock_read=_LONGEST_WAIT_S)
        response = await self._http().request(
            method, path, params=parameters, data=body, headers=headers, timeout=timeout
        )
        if response.status >= 400:
            async with response:
                _content(response.status, await response.read())
        return response

    def _at_least(self, more: Position | Token | None) -> dict[str, str]:
        bounds = [bound for bound in (self._seen, more) if bound is not None]
        return {"Engram-At-Least": ",".join(map(str, bounds))} if bounds else {}

    async def events(self, *, after: str = "start", names: Sequence[str] = ()) -> AsyncIterator[EventReceived]:
        """The app's events without end, those of a partition in their order, from a cursor on.

            async for received in client.events(after=cursor):
                match received.event:
                    case Followed(who=who, whom=whom): ...

        `after` is the `cursor` of an event that was received before, `"start"`, or `"end"` for those of commands that
        are logged from now on; `names` leaves out all others. Old versions are brought up by the app's upcasters.
        Raises `Misuse` for a cursor of another log, `Corrupt` for an event that this app does not know, and
        `Unavailable` after no word within `patience`: go on from the last cursor later.
        """
        codec = Codec(self._app)
        wanted = [*(("name", name) for name in names), ("wait", f"{min(self._timeout, _LONGEST_WAIT_S):g}")]
        while True:
            asked = partial(self._get, f"{self._base}/events", [*wanted, ("after", after)])
            page = await self._patiently(asked)
            for about in page["events"]:
                yield _received(codec, about)
            after = page["cursor"]

    async def quarantined(self, *, limit: int = 100) -> FailedCommands:
        """The newest commands that failed, of all partitions; those that could not be asked are in `not_served`."""
        content = await self._patiently(partial(self._get, f"{self._base}/quarantine", [("limit", str(limit))]))
        return FailedCommands.model_validate(content)

    async def quarantine_row(self, position: Position) -> FailedCommandDetail:
        """All that is known of a failed command. Raises `Misuse` if there is none at that position."""
        content = await self._patiently(partial(self._get, f"{self._base}/quarantine/{position}", []))
        return FailedCommandDetail.model_validate(content)

    async def retry(self, position: Position) -> Retried:
        """Sends a failed command again, as a new one, and returns what became of that: a reply, a rejection, or one
        more failure. Raises `Misuse` if there is none at that position, or it cannot be sent again.

        Tried once: after `Unavailable` look whether it is still in quarantine.
        """
        return Retried.model_validate(await self._change_quarantine("POST", f"{position}/retry"))

    async def drop(self, position: Position) -> Dropped:
        """Takes a failed command out of the quarantine. Raises `Misuse` if there is none at that position."""
        return Dropped.model_validate(await self._change_quarantine("DELETE", str(position)))

    async def take_snapshots(self, savepoint: str = "", *, seconds: float = 600.0) -> SnapshotsTaken:
        """Has a snapshot of every partition taken while the app goes on, and returns when all are published. With a
        name they are savepoints: whole, and kept. Raises `Misuse` if there is a savepoint of that name, and
        `Unavailable` when it takes longer than `seconds`.

        Tried once: after `Unavailable` some partitions may have theirs.
        """
        parameters = {"timeout": f"{seconds:g}", **({"savepoint": savepoint} if savepoint else {})}
        url, whole = f"{self._base}/snapshots", aiohttp.ClientTimeout(total=seconds + _GRACE_S)
        return SnapshotsTaken.model_validate(await self._once("POST", url, parameters, timeout=whole))

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
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=self._timeout + _GRACE_S),
                max_field_size=_HEADER_BYTES,
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
            parameters, body = {"key": key, "wait": wait}, command.model_dump_json()
            with self._spans.around("send", command.__engram__.name or "", key):
                return await self._post(self._path("commands", command), parameters, body, headers)
        finally:
            # The next command of the session has a greater number, whatever became of this one.
            self._free.append((session, sequence + 1))

    def _open_session(self) -> tuple[str, int]:
        self._opened += 1
        return f"{self._name}.{self._opened}", 0

    async def _post(self, path: str, parameters: dict[str, str], body: str, headers: dict[str, str]) -> dict[str, Any]:
        parameters, headers = {**parameters, "timeout": f"{self._timeout:g}"}, {**headers, **self._spans.carried()}

        async def attempt() -> dict[str, Any]:
            async with self._http().post(path, params=parameters, data=body, headers=headers) as response:
                self._note(response)  # of a rejection too: it tells something of the state
                return _content(response.status, await response.read())

        return await self._patiently(attempt)

    async def _get(
        self, path: str, parameters: list[tuple[str, str]], headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        async with self._http().get(path, params=parameters, headers=headers) as response:
            content = _content(response.status, await response.read())
        self._note(response)
        return content

    async def _look(
        self,
        model: type[ReadModel],
        place: str,
        limit: int | None,
        after: str | None,
        at_least: Position | Token | None,
    ) -> Any:
        told = {place_of(model): place, "limit": limit, "cursor": after, "timeout": f"{self._timeout:g}"}
        parameters = [(name, str(value)) for name, value in told.items() if value is not None]
        with self._spans.around("look", model.__engram__.name or "", place):
            headers = {**self._at_least(at_least), **self._spans.carried()}
            content = await self._patiently(partial(self._get, self._model_path(model), parameters, headers))
        return self._read(model, content)

    async def _change_quarantine(self, method: str, path: str) -> dict[str, Any]:
        return await self._once(method, f"{self._base}/quarantine/{path}", {"timeout": f"{self._timeout:g}"})

    async def _once(self, method: str, url: str, parameters: dict[str, str], **how: Any) -> dict[str, Any]:
        try:
            async with self._http().request(method, url, params=parameters, **how) as response:
                content = _content(response.status, await response.read())
        except (aiohttp.ClientError, TimeoutError) as problem:
            raise Unavailable(f"{self._base} could not be reached: {problem!r}") from problem
        self._note(response)
        return content

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

    def _note(self, response: aiohttp.ClientResponse) -> None:
        text = response.headers.get("Engram-Token")
        if text:
            token = Token.parse(text)
            # An app that was made anew with other partitions has nothing of what was seen before.
            seen = self._seen
            self._seen = token if seen is None or seen.partitions != token.partitions else seen | token

    def _path(self, kind: str, asked: Command[Any, Any] | Query[Any, Any]) -> str:
        entity = entity_of(type(asked)).__engram__.name
        return f"{self._base}/{entity}/{kind}/{asked.__engram__.name}"

    def _model_path(self, model: type[ReadModel]) -> str:
        return f"{self._base}/read_models/{model.__engram__.name}"

    def _read(self, model: type[ReadModel], content: dict[str, Any]) -> Any:
        """What a read model answered, as its class declares it."""
        if issubclass(model, Tally):
            return Totals(*(content[name] for name in Totals._fields))
        read, rows = self._read_row(model), content["rows"]
        found: Iterable[Any] = map(read, rows)
        if issubclass(model, Ranking):
            found = (Ranked(each["score"], read(each["row"])) for each in rows)
        elif issubclass(model, Search):
            found = (read(each["row"]) for each in rows)
        return Rows(found, content.get("cursor"))

    def _read_row(self, model: type[ReadModel]) -> Callable[[Any], Any]:
        adapter = self._results.get(model)
        if adapter is None:
            adapter = self._results[model] = adapter_of(row_of(model))
        return lambda row: adapter.validate_json(json.dumps(row))

    def _result(self, cls: type[Any], value: Any) -> Any:
        adapter = self._results.get(cls)
        if adapter is None:
            adapter = self._results[cls] = result_adapter(cls)
        return adapter.validate_json(json.dumps(value))  # as JSON, because that is what it was encoded as


def _received(codec: Codec, about: dict[str, Any]) -> EventReceived:
    return EventReceived(
        event=codec.decode_event(about["name"], about["version"], json.dumps(about["body"]).encode()),
        id=about["id"],
        key=about["key"],
        time=datetime.fromisoformat(about["time"]),
        cause=about["cause"],
        root=about.get("root"),
        cursor=about["cursor"],
    )


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


_ERRORS: dict[str, type[EngramError]] = {
    "quarantined": Quarantined,
    "denied": Denied,
    "unauthenticated": Unauthenticated,
    "stopped": Corrupt,
    "foreign": Foreign,
    "unsettled": Unsettled,
}
_WITH_GAP = {"behind": Behind, "ahead": Ahead}


def _error(kind: str, detail: str, problem: dict[str, Any], status: int) -> EngramError:
    if kind == "rejected":
        return Rejected(problem["code"], detail if detail != problem["code"] else "")
    if kind in _WITH_GAP:
        return _WITH_GAP[kind](detail, _gap(problem))
    if kind in _ERRORS:
        return _ERRORS[kind](detail)
    return Unavailable(detail) if status >= 500 or status == 429 else Misuse(detail)


def _gap(problem: dict[str, Any]) -> Gap | None:
    return Gap(*(problem[name] for name in Gap._fields)) if set(Gap._fields) <= problem.keys() else None
