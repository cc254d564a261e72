"""The typed client: commands and queries over HTTP, with their own reply and answer types."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, overload

import msgspec
from pydantic import TypeAdapter

from engram.codec.codec import Codec
from engram.codec.values import adapter_of, result_adapter
from engram.errors import EngramError, Unavailable
from engram.model.app import App, entity_of
from engram.model.command import Broadcast, Command
from engram.model.entity import EVERYWHERE, Entity, Shared
from engram.model.position import Position
from engram.model.query import Query
from engram.model.read_model import Lookup, Ranked, Ranking, ReadModel, Search, Tally, Totals, place_of, row_of
from engram.model.token import Token
from engram.serving.asking import AskingSpans
from engram.serving.failed import Dropped, FailedCommandDetail, FailedCommands, Retried
from engram.serving.http_line import LONGEST_WAIT_S, HttpLine
from engram.serving.messages import ServerSent
from engram.serving.raised import error_of
from engram.serving.received import EventReceived, received
from engram.serving.rows import Rows
from engram.serving.sessions import Sessions
from engram.serving.taken import SnapshotsTaken
from engram.serving.topic import refusal

R = TypeVar("R")
A = TypeVar("A")
T = TypeVar("T")
E = TypeVar("E", bound=Entity)
S = TypeVar("S", bound=Shared)
Wait = Literal["reply", "effects"]


class _Result(msgspec.Struct):
    """What became of a command; `reply` as it came, to be read by the command's own type."""

    reply: msgspec.Raw = msgspec.Raw(b"null")
    position: str = ""
    problem: dict[str, Any] | None = None


class _Results(msgspec.Struct):
    replies: list[_Result]


_read_result = msgspec.json.Decoder(_Result).decode
_read_results = msgspec.json.Decoder(_Results).decode


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
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        base = f"{url.rstrip('/')}/api/{app.name}"
        self._line = self._open_line(base, timeout=timeout, patience=patience, headers=headers)
        self._app = app
        name = secrets.token_hex(8)
        self._sessions, self._batches = Sessions(f"{name}."), Sessions(f"{name}.b")
        self._results: dict[type[Any], TypeAdapter[Any]] = {}
        self._spans = AskingSpans.made()

    def _open_line(self, base: str, **how: Any) -> HttpLine:
        return HttpLine(base, **how)

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
        result = await self._send(key, command, wait, idempotency_key)
        return self._adapter(type(command)).validate_json(bytes(result.reply))  # type: ignore[no-any-return]  # by its type

    async def send_many(
        self, commands: Iterable[tuple[str, Command[Any, R]]], *, idempotency_keys: Sequence[str] | None = None
    ) -> list[R | EngramError]:
        """Sends many commands in one request, each with the key of its entity, and returns for each of them, in their
        order, its reply, or the exception that `send` would have raised.

            replies = await client.send_many(("ada", Follow(whom=name)) for name in ("bob", "cleo"))

        Each stands for itself: there is no transaction around them, and one that is refused leaves the others as they
        are. Those of one entity are handled in their order. One to a thousand, and a mebibyte; send more in several
        calls. As with `send`, what got no reply is sent again with the same ids for up to `patience` seconds.

        Raises what concerns all of them: `Misuse` for too many, `Unauthenticated`, `Unavailable` if there was no word.
        """
        given = list(commands)
        keys: Sequence[str | None] = [None] * len(given) if idempotency_keys is None else idempotency_keys
        entries = [_entry(key, command, once) for (key, command), once in zip(given, keys, strict=True)]
        latest: list[R | EngramError] | None = None

        def read(body: bytes) -> list[R | EngramError]:
            nonlocal latest
            results = _read_results(body).replies
            latest = [self._outcome(command, result) for (_, command), result in zip(given, results, strict=True)]
            for each in latest:
                if isinstance(each, Unavailable):
                    raise each
            return latest

        try:
            with self._batches.one() as id_, self._spans.around("send", "many", str(len(given))):
                headers = {**id_, **self._spans.carried()}
                return await self._line.post("commands", {}, f"[{','.join(entries)}]", headers, read)
        except Unavailable:
            if latest is None:
                raise
            return latest

    async def broadcast(
        self, command: Broadcast[S, R], *, wait: Wait = "reply", idempotency_key: str | None = None
    ) -> R:
        """Sends a command for a shared object, and returns its reply. Every partition handles it in its turn, in the
        same order as all broadcasts; some may do so shortly after this returns, unless `wait="effects"`."""
        return await self.send(EVERYWHERE, command, wait=wait, idempotency_key=idempotency_key)

    async def submit(self, key: str, command: Command[E, R], *, idempotency_key: str | None = None) -> Position:
        """Sends a command and returns its position, once it is logged. It will be handled, whatever crashes."""
        return Position.parse((await self._send(key, command, "log", idempotency_key)).position)

    @property
    def token(self) -> Token | None:
        """All that this client has sent and seen: give it to others as `at_least`, and they see it too."""
        return self._line.seen

    async def ask(self, key: str, query: Query[E, A], *, at_least: Position | Token | None = None) -> A:
        """Asks a query. The answer includes everything this client has sent or seen, and `at_least`.

        Raises `Behind` if the state did not come that far within the timeout, and `Ahead` if the log does not have it
        any more, because it was restored from a backup: then begin with a new client.
        """
        path = self._path("queries", query)
        with self._spans.around("ask", query.__engram__.name or "", key):
            headers = {**self._line.at_least(at_least), **self._spans.carried()}
            content = await self._line.post(path, {"key": key}, query.model_dump_json(), headers, json.loads)
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
            stream = self._line.streamed("POST", path, {"key": what}, body=body)
            return self._changes(stream, lambda content: self._result(type(of), content["answer"]))
        rows = limit or (100 if issubclass(what, Lookup) else 10)
        parameters = {place_of(what): of, **({} if issubclass(what, Tally) else {"limit": str(rows)})}
        stream = self._line.streamed("GET", self._model_path(what), parameters)
        return self._changes(stream, partial(self._read, what))

    async def _changes(self, stream: AsyncGenerator[ServerSent], read: Callable[[Any], T]) -> AsyncIterator[T]:
        async with aclosing(stream):
            async for message in stream:
                content = json.loads(message.data)
                if message.event == "refused":
                    raise refusal(content["refused"])
                if message.event == "answer":
                    yield read(content)

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
        wanted = [*(("name", name) for name in names), ("wait", f"{min(self._line.timeout, LONGEST_WAIT_S):g}")]
        while True:
            page = await self._line.get("events", [*wanted, ("after", after)])
            for about in page["events"]:
                yield received(codec, about)
            after = page["cursor"]

    async def quarantined(self, *, limit: int = 100) -> FailedCommands:
        """The newest commands that failed, of all partitions; those that could not be asked are in `not_served`."""
        content = await self._line.get("quarantine", [("limit", str(limit))])
        return FailedCommands.model_validate(content)

    async def quarantine_row(self, position: Position) -> FailedCommandDetail:
        """All that is known of a failed command. Raises `Misuse` if there is none at that position."""
        content = await self._line.get(f"quarantine/{position}", [])
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
        return SnapshotsTaken.model_validate(await self._line.once("POST", "snapshots", parameters, seconds=seconds))

    async def status(self, *, digests: bool = False) -> dict[str, Any]:
        """The app's shards and partitions."""
        return await self._line.get_once("", [("digests", str(digests).lower())])

    async def close(self) -> None:
        await self._line.close()

    async def _send(self, key: str, command: Command[Any, Any], wait: str, idempotency_key: str | None) -> _Result:
        once = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        parameters, body = {"key": key, "wait": wait}, command.model_dump_json()
        with self._sessions.one() as id_, self._spans.around("send", command.__engram__.name or "", key):
            headers = {**id_, **once, **self._spans.carried()}
            return await self._line.post(self._path("commands", command), parameters, body, headers, _read_result)

    def _outcome(self, command: Command[Any, R], result: _Result) -> R | EngramError:
        if result.problem is not None:
            return error_of(result.problem)
        return self._adapter(type(command)).validate_json(bytes(result.reply))  # type: ignore[no-any-return]  # by its type

    async def _look(
        self,
        model: type[ReadModel],
        place: str,
        limit: int | None,
        after: str | None,
        at_least: Position | Token | None,
    ) -> Any:
        told = {place_of(model): place, "limit": limit, "cursor": after, **self._line.seconds}
        parameters = [(name, str(value)) for name, value in told.items() if value is not None]
        with self._spans.around("look", model.__engram__.name or "", place):
            headers = {**self._line.at_least(at_least), **self._spans.carried()}
            content = await self._line.get(self._model_path(model), parameters, headers)
        return self._read(model, content)

    async def _change_quarantine(self, method: str, path: str) -> dict[str, Any]:
        return await self._line.once(method, f"quarantine/{path}", self._line.seconds)

    def _path(self, kind: str, asked: Command[Any, Any] | Query[Any, Any]) -> str:
        entity = entity_of(type(asked)).__engram__.name
        return f"{entity}/{kind}/{asked.__engram__.name}"

    def _model_path(self, model: type[ReadModel]) -> str:
        return f"read_models/{model.__engram__.name}"

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
        return self._adapter(cls).validate_json(json.dumps(value))  # as JSON, because that is what it was encoded as

    def _adapter(self, cls: type[Any]) -> TypeAdapter[Any]:
        adapter = self._results.get(cls)
        if adapter is None:
            adapter = self._results[cls] = result_adapter(cls)
        return adapter


def _entry(key: str, command: Command[Any, Any], idempotency_key: str | None) -> str:
    once = "" if idempotency_key is None else f',"idempotency_key":{json.dumps(idempotency_key)}'
    name = command.__engram__.name
    return f'{{"command":"{name}","key":{json.dumps(key)},"body":{command.model_dump_json()}{once}}}'
