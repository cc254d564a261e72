"""Homes: where the entities of one type live, and how commands find them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from itertools import repeat
from typing import Any, NamedTuple, Protocol, runtime_checkable

from engram.codec.codec import Codec
from engram.image.guard import Guard, assigned_fields, captured_fields, guard_for
from engram.image.undo import UndoLog, adopt
from engram.model.command import Command
from engram.model.context import Context
from engram.model.entity import Entity
from engram.model.query import Query
from engram.model.version import Version

Handle = Callable[[Command[Any, Any], Any, Context], Any]

_CLEAN = 0  # the mark of an entity that no round has changed
# Past any `__setattr__` of an author's: a mark is no field.
set_mark: Callable[[Entity, int], None] = Entity._round.__set__  # type: ignore[attr-defined]  # the slot's descriptor


class Older(NamedTuple):
    """The state of an entity in a version before today's."""

    version: Version
    state: bytes


# Bytes are of today's version: most are, and a tuple for each would take time and room.
Cold = MutableMapping[str, bytes | Older]


class Walk(Protocol):
    """A way through the keys of cold entities, each once, while others go."""

    def take(self, limit: int) -> list[str]:
        """The next so many; fewer only at the end."""

    def passed(self, key: str) -> bool:
        """Whether one that is still there was among those taken."""


@runtime_checkable
class Walkable(Protocol):
    """A place for cold entities that can be gone through without all keys in memory."""

    def walk(self) -> Walk:
        """From its first."""


class Home:
    """The entities of one type, with the undo log that their containers and parts write to.

    `cold` has those that nobody has touched for long: encoded. `dirty` has the keys of entities
    that have changed since the last freeze began, each once: those whose mark is this `round`. A mark is on the entity
    itself, and in `cold_marks` while it is cold. (A set of a million keys would cost a look into it for each command,
    and pauses when it grows.) `made` has the keys of all but the cold ones
    in the order in which they were made, which is that of their places in memory, more or less: a long walk takes less
    time in this order. `leaving`, if anybody wants to know, is told the key of an entity that is about to leave `cold`.
    """

    __slots__ = (
        "_codec",
        "_mutable",
        "born",
        "cls",
        "cold",
        "cold_marks",
        "dirty",
        "encode",
        "encode_rows",
        "entities",
        "guard",
        "leaving",
        "made",
        "name",
        "round",
        "undo",
        "version",
    )

    def __init__(self, cls: type[Entity], entities: dict[str, Entity], undo: UndoLog, codec: Codec, cold: Cold) -> None:
        self.cls = cls
        self.name = cls.__engram__.name or ""
        self.version = codec.version_of(cls)
        self.entities = entities
        self.cold = cold
        self.dirty: list[str] = []
        self.round = 1
        self.cold_marks: dict[str, int] = {}
        self.made: list[str] = []
        self.leaving: Callable[[str], None] | None = None
        self.undo = undo
        self._codec = codec
        self.encode = codec.quick_encoder(cls)  # within `strictly()`
        self.born: list[str] | None = None  # those that are new since read models have looked, if there are any
        self.encode_rows: Callable[[str], bytes] | None = None  # of read models, if there are any of this type
        self.guard = guard_for(cls, None)
        self._mutable = self.guard.mutable

    def fresh(self, key: str) -> Entity:
        return self._adopted(self.cls(key=key))

    def put(self, key: str, entity: Entity) -> None:
        self.keep(key, self._adopted(entity))

    def keep(self, key: str, entity: Entity) -> None:
        """From here on the entity is there."""
        self.entities[key] = entity
        self.made.append(key)

    def find(self, key: str) -> Entity | None:
        """The entity, if there is one; it is decoded if it was not yet."""
        entity = self.entities.get(key)
        if entity is None and (cold := self.cold.get(key)) is not None:
            entity = self._adopted(self._decoded(cold))
            if self.leaving is not None:
                self.leaving(key)
            if self.cold_marks:
                set_mark(entity, self.cold_marks.pop(key, _CLEAN))
            self.keep(key, entity)
            del self.cold[key]
        return entity

    def peek(self, key: str) -> Entity:
        """An entity that is there, only to be read. One that is still encoded stays so."""
        cold = self.cold.get(key)
        return self.entities[key] if cold is None else self._decoded(cold)

    def encoded(self, key: str) -> bytes:
        """The state, in today's version, of an entity that is there."""
        cold = self.cold.get(key)
        if cold is None:
            return self._codec.encode_entity(self.entities[key])
        if isinstance(cold, Older):  # brought up, so that the same state is always encoded the same
            return self._codec.encode_entity(self._decoded(cold))
        return cold

    def mark(self, key: str) -> None:
        """An entity that is there is dirty from now on. (What a handler changes, the image marks itself.)"""
        if self.mark_of(key) == self.round:
            return
        self.dirty.append(key)
        entity = self.entities.get(key)
        if entity is None:
            self.cold_marks[key] = self.round
        else:
            set_mark(entity, self.round)

    def mark_of(self, key: str) -> int | None:
        """The round in which it was last changed, if it is known."""
        entity = self.entities.get(key)
        return self.cold_marks.get(key) if entity is None else entity._round

    def clear_mark(self, key: str) -> None:
        """An entity is in a snapshot as it is now."""
        entity = self.entities.get(key)
        if entity is None:
            self.cold_marks.pop(key, None)
        else:
            set_mark(entity, _CLEAN)

    def next_round(self) -> list[str]:
        """Those that are dirty; from here on none is."""
        dirty, self.dirty = self.dirty, []
        self.round += 1
        return dirty

    def cool(self, count: int) -> None:
        """Encodes so many of those that were made or touched first. Within `strictly()`, and not during a freeze.

        One that is dirty was touched lately: up to half of them are spared, and are last in the row from then on. So is
        one that cannot be encoded: the next snapshot tells.
        """
        spared: list[str] = []
        done = 0
        try:
            for key in self.made[:count]:
                entity = self.entities[key]
                dirty = entity._round == self.round
                if dirty and len(spared) < count // 2:
                    spared.append(key)
                else:
                    try:
                        self.cold[key] = self.encode(entity)
                    except UserWarning:
                        spared.append(key)
                    else:
                        if dirty:
                            self.cold_marks[key] = self.round
                        del self.entities[key]
                done += 1
        finally:  # a disk may be full
            del self.made[:done]
            self.made += spared

    def count(self) -> int:
        return len(self.entities) + len(self.cold)

    def all_keys(self) -> Iterator[str]:
        """One by one: of a million cold ones the keys alone would take much room."""
        yield from self.entities
        yield from self.cold

    def walk_cold(self) -> Walk:
        return self.cold.walk() if isinstance(self.cold, Walkable) else _Listed(self.cold)

    def take_back(self, entity: Entity, key: str, guard: Guard, before: Any) -> bool:
        """Undoes whatever was done to an entity since `guard.captured`; whether that was anything."""
        changed = bool(self.undo) or not guard.unchanged(entity, key, before)
        if changed:
            self.undo.roll_back()
            guard.restore(entity, key, before)
        return changed

    def load(self, keys: list[str], version: Version, states: list[bytes]) -> None:
        """These are there, and cold. Those that are there already take these states."""
        today = version == self.version
        self.cold.update(zip(keys, states if today else map(Older, repeat(version), states), strict=True))

    def _decoded(self, cold: bytes | Older) -> Entity:
        return self._codec.decode_entity(self.name, *(cold if isinstance(cold, Older) else (self.version, cold)))

    def _adopted(self, entity: Entity) -> Entity:
        set_mark(entity, _CLEAN)
        for name, shape in self._mutable:
            setattr(entity, name, adopt(getattr(entity, name), self.undo, shape))
        return entity


class _Listed:
    """The walk through what is in memory anyway."""

    def __init__(self, cold: Cold) -> None:
        self._left = list(cold)
        self._taken: set[str] = set()

    def take(self, limit: int) -> list[str]:
        taken = self._left[-limit:] if limit > 0 else []
        del self._left[len(self._left) - len(taken) :]
        self._taken.update(taken)
        return taken

    def passed(self, key: str) -> bool:
        return key in self._taken


class Plan(NamedTuple):
    """What is looked up once per command type instead of once per command."""

    home: Home
    entities: dict[str, Entity]
    guard: Guard
    capture: Callable[[Entity], Any] | None
    checked: bool
    replies_none: bool
    encode_reply: Callable[[Any], bytes]
    handle: Handle


def plan_for(
    command: type[Command[Any, Any]],
    home: Home,
    encode_reply: Callable[[Any], bytes],
    around: Callable[[Handle], Handle] | None,
) -> Plan:
    try:
        replies_none = encode_reply(None) == b"null"
    except ValueError:
        replies_none = False
    fields = captured_fields if replies_none and around is None else assigned_fields
    guard = guard_for(home.cls, fields(command.handle, home.cls))
    handle = command.handle if around is None else around(command.handle)
    return Plan(home, home.entities, guard, guard.capture, guard.checked, replies_none, encode_reply, handle)


class Reading(NamedTuple):
    """The same for a query type. Not `watched` is one whose source says that it assigns no field: what it does to
    containers and parts is noted by these."""

    home: Home
    guard: Guard
    watched: bool
    encode_answer: Callable[[Any], bytes]


def reading_for(query: type[Query[Any, Any]], home: Home, encode_answer: Callable[[Any], bytes]) -> Reading:
    guard = guard_for(home.cls, assigned_fields(query.answer, home.cls))
    return Reading(home, guard, guard.whole or bool(guard.names), encode_answer)
