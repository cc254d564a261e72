"""Two versions of an app over the same records of a partition: what the new one would have done otherwise.

Both handle what is in the log. Messages in it are those that the old version has sent: when the new one would have sent
others, that is told, but nobody handles them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError

from engram.codec.codec import Codec
from engram.codec.record import Record
from engram.errors import Corrupt, EngramError
from engram.image.image import Handled, Image
from engram.image.outcome import Outcome
from engram.model.app import entity_of
from engram.model.effects import Message, OutEvent
from engram.model.position import Position
from engram.model.query import Query
from engram.model.version import Version

Kind = Literal["reply", "event", "message", "state", "answer", "record"]
KINDS: tuple[Kind, ...] = ("reply", "event", "message", "state", "answer", "record")
# Longer ones are cut in examples: a report is to be looked at.
_SHOWN = 2000

Told = dict[tuple[int, int], Any]


class Difference(NamedTuple):
    """An example: what the old version did and the new one would do, as JSON; empty for nothing at all. `name` is the
    command's, event's, entity's or query's."""

    kind: Kind
    name: str
    key: str
    position: str
    old: str
    new: str


class Shadow:
    """Compares two images of one partition, of the old version and of the new, from the same beginning.

    `handle` each record, then `finish` once. `compared` and `different` count by kind and name; `examples` has the
    first so many of each.
    """

    def __init__(self, old: Image, new: Image, *, examples: int) -> None:
        self._old = old
        self._new = new
        self._most = examples
        self.compared: Counter[tuple[Kind, str]] = Counter()
        self.different: Counter[tuple[Kind, str]] = Counter()
        self.examples: list[Difference] = []
        self.foreign = 0
        """Records that the log says another version than the old one has handled."""

    def handle(self, record: Record) -> bool:
        """False when the new version cannot read the record: it would stop here, and the comparison does."""
        if record.kind.is_work and self._old.app_version not in (0, self._old.app.version):
            self.foreign += 1
        did = self._old.handle(record)
        position = Position(record.partition, record.offset, 0)
        try:
            would = self._new.handle(record)
        except Corrupt as problem:
            self._note("record", record.kind.value, "", position, "", str(problem))
            return False
        self._compare_replies(position, record, did, would)
        upcast = _Upcast(self._new.codec)
        self._compare_effects("event", position, _events(did.events, upcast.event), _events(would.events, _as_is))
        self._compare_effects(
            "message", position, _messages(did.messages, upcast.command), _messages(would.messages, _as_is)
        )
        return True

    def finish(self, tell: Callable[[], None] = lambda: None) -> None:
        """Compares states and answers, as they are now. Queries that need fields are not asked."""
        position = Position(self._old.partition, *self._old.place) if self._old.offset else Position(0, 0, 0)
        states = [_states(image) for image in (self._old, self._new)]
        upcast = _Upcast(self._new.codec)
        for name, key in sorted(states[0].keys() | states[1].keys()):
            before = states[0].get((name, key))
            old = None if before is None else upcast.state(name, *before)
            after = states[1].get((name, key))
            self._compare("state", name, key, position, old, None if after is None else _parsed(after[1]))
            tell()
        for name, old_query, new_query in self._queries():
            entity = entity_of(type(new_query)).__engram__.name or ""
            for of, key in states[1]:
                if of == entity:
                    answers = _answer(self._old, old_query, key), _answer(self._new, new_query, key)
                    self._compare("answer", name, key, position, *answers)
                    tell()

    def _queries(self) -> Iterator[tuple[str, Query[Any, Any], Query[Any, Any]]]:
        for name, cls in sorted(self._new.app.queries.items()):
            try:
                yield name, self._old.app.queries[name](), cls()
            except (KeyError, ValidationError):
                continue

    def _compare_replies(self, position: Position, record: Record, did: Handled, would: Handled) -> None:
        if len(did.outcomes) != len(would.outcomes):
            names = str(len(did.outcomes)), str(len(would.outcomes))
            self._note("reply", record.kind.value, "", position, *(f"{count} replies" for count in names))
            return
        if not did.outcomes:
            return
        header = self._old.codec.decode_record(record).header  # type: ignore[union-attr]  # what has outcomes has one
        for index, (old, new) in enumerate(zip(did.outcomes, would.outcomes, strict=True)):
            name = header.types[header.which[index]][0]
            place = position._replace(index=index)
            self._compare("reply", name, header.keys[index], place, _outcome(old), _outcome(new))

    def _compare_effects(self, kind: Kind, position: Position, did: Told, would: Told) -> None:
        for index, number in sorted(did.keys() | would.keys()):
            old: Any = did.get((index, number))
            new: Any = would.get((index, number))
            name, key = (new if old is None else old)[:2]
            place = position._replace(index=index)
            self._compare(kind, name, key, place, None if old is None else old[2], None if new is None else new[2])

    def _compare(self, kind: Kind, name: str, key: str, position: Position, old: Any, new: Any) -> None:  # noqa: PLR0917
        self.compared[kind, name] += 1
        if old != new:
            self._note(kind, name, key, position, _shown(old), _shown(new))

    def _note(self, kind: Kind, name: str, key: str, position: Position, old: str, new: str) -> None:  # noqa: PLR0917
        self.different[kind, name] += 1
        if self.different[kind, name] <= self._most:
            self.examples.append(Difference(kind, name, key, str(position), old[:_SHOWN], new[:_SHOWN]))


class _Upcast:
    """What the old version wrote, as the new one reads it: another shape alone is no difference."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def event(self, name: str, version: Version, body: bytes) -> Any:
        return self._up(body, lambda: self._codec.encode_body(self._codec.decode_event(name, version, body)))

    def command(self, name: str, version: Version, body: bytes) -> Any:
        return self._up(body, lambda: self._codec.encode_body(self._codec.decode_command(name, version, body)))

    def state(self, name: str, version: Version, state: bytes) -> Any:
        return self._up(state, lambda: self._codec.encode_entity(self._codec.decode_entity(name, version, state)))

    @staticmethod
    def _up(body: bytes, bring_up: Callable[[], bytes]) -> Any:
        try:
            return _parsed(bring_up())
        except EngramError:  # the new version does not have it any more
            return _parsed(body)


def _as_is(_name: str, _version: Version, body: bytes) -> Any:
    return _parsed(body)


Read = Callable[[str, Version, bytes], Any]


def _events(events: Iterable[OutEvent], read: Read) -> Told:
    return {(e.index, e.number): (e.name, e.key, [e.name, read(e.name, e.version, e.body)]) for e in events}


def _messages(messages: Iterable[Message], read: Read) -> Told:
    """By their place among all that a command has sent."""
    sent: Counter[int] = Counter()
    told: Told = {}
    for message in messages:
        index = message.origin[1]
        body = read(message.name, message.version, message.body)
        told[index, sent[index]] = message.name, message.key, [message.key, message.name, body]
        sent[index] += 1
    return told


def _states(image: Image) -> Mapping[tuple[str, str], tuple[Version, bytes]]:
    return {(row.entity, row.key): (row.version, row.state) for row in image.rows()}


def _answer(image: Image, query: Query[Any, Any], key: str) -> Any:
    try:
        return _parsed(image.ask(query, key))
    except Exception as problem:  # noqa: BLE001 - what a query raises is its answer here
        return f"raises {type(problem).__name__}"


def _outcome(outcome: Outcome) -> Any:
    return [outcome.verdict.value, _parsed(outcome.body)]


def _parsed(body: bytes) -> Any:
    return json.loads(body)


def _shown(value: Any) -> str:
    return "" if value is None else json.dumps(value, ensure_ascii=False)
