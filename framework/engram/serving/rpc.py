"""Queries without a gateway, for a trusted process beside the shards: one question, one answer, nothing between."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, NamedTuple, Self, TypeVar

import zmq

from engram.codec.codec import Codec
from engram.codec.values import result_adapter
from engram.errors import Corrupt, Misuse, Unavailable
from engram.log.partitioner import partition_of
from engram.model.app import App
from engram.model.entity import Entity
from engram.model.keys import Keys
from engram.model.position import Position
from engram.model.query import Query
from engram.model.token import Token
from engram.model.version import Version
from engram.serving.asker import DirectLine, Line, ZmqLine
from engram.serving.curve import LineKeys
from engram.serving.heads import LINE_VERSION
from engram.serving.refused import PASSING, refused
from engram.serving.registry import WHERE, Location, Whereabouts
from engram.serving.wire import decode_response, encode_request
from engram.shard.requests import Answer, Ask, Refusal

E = TypeVar("E", bound=Entity)
A = TypeVar("A")

# After so much silence it is looked whether the partition has moved: over ZeroMQ nobody tells that a shard is gone.
_SILENCE_MS = 250
# A partition that is between two owners is asked for again after this.
_PAUSE_S = 0.02
# A shard says itself when a query's time is up, and how far behind it is. It may be busy at that moment.
_ANSWER_GRACE_S = 2.0


class Answered(NamedTuple, Generic[A]):
    """An answer, and the position of the last command that it includes."""

    answer: A
    position: Position


class _Plan(NamedTuple):
    name: str
    version: Version
    decode: Callable[[bytes], Any]


class Rpc:
    """Asks shards, found by the registry of a running app; `engram run` says where that is.

        with Rpc("tcp://127.0.0.1:8081", app) as rpc:
            card = rpc.ask("ada", Profile())

    For processes that may see everything: no `authorize` is asked. With `keys`, those of the app, lines are encrypted;
    an app that has keys hears nobody without. Every answer includes all that this object has seen before, wherever
    the partition is served by then. A query that meets a shard that is lost or replaced is asked again, until its time
    is up. For one thread and one process: make one for each.
    """

    def __init__(self, registry: str, app: App, *, keys: LineKeys | None = None, timeout: float = 10.0) -> None:
        codec = Codec(app)
        self._app = app
        self._keys = keys
        self._timeout = timeout
        self._checked_key = Keys(app).checked
        self._plans = {
            cls: _Plan(name, codec.version_of(cls), result_adapter(cls).validator.validate_json)
            for name, cls in app.queries.items()
        }
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._registry = ZmqLine(self._context, registry, keys, silence_ms=_SILENCE_MS)
        self._address = registry
        self._where: Whereabouts | None = None
        self._lines: dict[Location, Line] = {}
        self._seen: dict[int, int] = {}
        self._id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_problem: object) -> None:
        self.close()

    def ask(
        self, key: str, query: Query[E, A], *, at_least: Position | Token | None = None, timeout: float | None = None
    ) -> A:
        """The answer of live state, with everything in it that this object has seen, and `at_least`.

        Raises what the query raises; `Behind`, with the lag, if the state did not come so far within `timeout` seconds,
        also for a position that the log does not have; and `Unavailable` if nobody has answered by then.
        """
        return self.ask_at(key, query, at_least=at_least, timeout=timeout).answer

    def ask_at(
        self, key: str, query: Query[E, A], *, at_least: Position | Token | None = None, timeout: float | None = None
    ) -> Answered[A]:
        """The same, with the answer's position."""
        deadline = time.monotonic() + (self._timeout if timeout is None else timeout)
        plan = self._plans.get(type(query))
        if plan is None:
            raise Misuse(f"{type(query).__name__} is no query of app {self._app.name}: list it in App(queries=[...]).")
        key = self._checked_key(key, type(query))
        where = self._where or self._look(deadline)
        partition = partition_of(key, where.partitions)
        bound = self._bound(partition, where.partitions, at_least)
        body = query.__pydantic_serializer__.to_json(query)
        self._id += 1
        left_ms = int(max(deadline - time.monotonic(), 0) * 1000)
        ask = Ask(self._id, partition, key, plan.name, plan.version, body, bound, left_ms)
        answer = self._asked(ask, deadline)
        if answer.offset > self._seen.get(partition, -1):
            self._seen[partition] = answer.offset
        return Answered(plan.decode(answer.body), Position(partition, answer.offset, answer.index))

    @property
    def token(self) -> Token | None:
        """All that this object has seen: give it to others as `at_least`, and they see it too."""
        if self._where is None:
            return None
        return Token(self._app.name, self._where.partitions, self._seen)

    def close(self) -> None:
        for line in (*self._lines.values(), self._registry):
            line.close()
        self._context.term()

    def _bound(self, partition: int, partitions: int, at_least: Position | Token | None) -> tuple[int, int] | None:
        offset = self._seen.get(partition, -1)
        if isinstance(at_least, Token):
            at_least.check(self._app.name, partitions)
            offset = max(offset, at_least.offsets.get(partition, -1))
        elif at_least is not None and at_least.partition == partition:
            offset = max(offset, at_least.offset)
        return None if offset < 0 else (offset, 0)

    def _asked(self, ask: Ask, deadline: float) -> Answer:
        while True:
            location = self._find(ask.partition, deadline)
            try:
                line = self._line(location)
                line.send(encode_request(ask))
                response = self._heard(line, ask, location, deadline)
            except OSError:
                self._leave(location)
                response = None
            except Corrupt:  # what comes after it on this line cannot be understood either
                self._leave(location)
                raise
            if isinstance(response, Answer):
                return response
            if response is not None and response.kind not in PASSING:
                raise refused(response, ask)
            self._pause(ask.partition, deadline, f"its shard {'is gone' if response is None else 'has moved'}")
            self._id += 1
            ask = ask._replace(id=self._id, timeout_ms=int(max(deadline - time.monotonic(), 0) * 1000))

    def _heard(self, line: Line, ask: Ask, location: Location, deadline: float) -> Answer | Refusal | None:
        """What the shard says to it; None if the partition is served elsewhere by now."""
        while True:
            frames = line.receive()
            if frames is not None:
                response = decode_response(frames)
                # Others are for questions that were given up.
                if isinstance(response, Answer | Refusal) and response.id == ask.id:
                    return response
            elif time.monotonic() > deadline + _ANSWER_GRACE_S:
                why = "" if self._where is None else self._where.stuck.get(ask.partition, "")
                text = f"The shard of partition {ask.partition} at {location.address} did not answer in time. {why}"
                raise Unavailable(text.rstrip())
            elif self._look(deadline + _ANSWER_GRACE_S).locations.get(ask.partition) != location:
                return None

    def _find(self, partition: int, deadline: float) -> Location:
        while True:
            where = self._where or self._look(deadline)
            location = where.locations.get(partition)
            if location is not None:
                return location
            if partition in where.problems:
                raise Corrupt(f"Partition {partition} is stopped. {where.problems[partition]}")
            self._pause(partition, deadline, "it is starting or recovering")

    def _pause(self, partition: int, deadline: float, why: str) -> None:
        """What is known is not true any more: it is asked for again, a little later."""
        if time.monotonic() >= deadline:
            raise Unavailable(f"No shard serves partition {partition}: {why}, and the time is up.")
        self._where = None
        time.sleep(_PAUSE_S)

    def _line(self, location: Location) -> Line:
        line = self._lines.get(location)
        if line is None:
            if location.direct and self._keys is None:
                line = DirectLine(location.direct, silence_ms=_SILENCE_MS)
            else:
                line = ZmqLine(self._context, location.address, self._keys, silence_ms=_SILENCE_MS)
            self._lines[location] = line
        return line

    def _leave(self, location: Location) -> None:
        line = self._lines.pop(location, None)
        if line is not None:
            line.close()

    def _where_is_everything(self) -> list[bytes] | None:
        with suppress(OSError):  # its queue is full: nobody takes what was sent before
            self._registry.send([WHERE])
            return self._registry.receive()
        return None

    def _look(self, deadline: float) -> Whereabouts:
        """Where everything is, from the registry."""
        self._registry.receive_all()
        began = time.monotonic()
        while (told := self._where_is_everything()) is None:
            if time.monotonic() >= deadline:
                raise Unavailable(
                    f"The registry at {self._address} did not answer within {time.monotonic() - began:.1f} s: look "
                    "whether the app runs, whether this is the address that it told, and whether the keys are its own."
                )
        where = _understood(told)
        if where.line != LINE_VERSION:
            raise Misuse(f"The app speaks version {where.line} of the line, and this is {LINE_VERSION}: update one.")
        if where.app != self._app.name:
            raise Misuse(f"The registry at {self._address} is of app {where.app!r}, and this asks {self._app.name!r}.")
        self._where = where
        for gone in self._lines.keys() - set(where.locations.values()):
            self._leave(gone)
        return where


def _understood(told: list[bytes]) -> Whereabouts:
    try:
        return Whereabouts.model_validate_json(told[1])
    except (ValueError, IndexError) as problem:
        raise Misuse(f"What answers there is no registry of this Engram: {problem}") from problem
