"""Homes: where the entities of one type live, and how commands find them."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any, NamedTuple

from engram.codec.codec import Codec
from engram.image.guard import Guard, assigned_fields, guard_for
from engram.image.undo import UndoLog, adopt
from engram.model.command import Command
from engram.model.context import Context
from engram.model.entity import Entity
from engram.model.version import Version

Cold = MutableMapping[str, tuple[Version, bytes]]
Handle = Callable[[Command[Any, Any], Any, Context], Any]


class Home:
    """The entities of one type, with the undo log that their containers and parts write to.

    `cold` has those that nobody has touched for long: encoded, with their versions. `dirty` has the
    keys of entities that are not in the newest snapshot as they are now. `made` has the keys of all but the cold ones
    in the order in which they were made, which is that of their places in memory, more or less: a long walk takes less
    time in this order.
    """

    __slots__ = (
        "_codec",
        "_mutable",
        "cls",
        "cold",
        "dirty",
        "encode",
        "encode_rows",
        "entities",
        "guard",
        "made",
        "name",
        "undo",
        "version",
    )

    def __init__(self, cls: type[Entity], entities: dict[str, Entity], undo: UndoLog, codec: Codec, cold: Cold) -> None:
        self.cls = cls
        self.name = cls.__engram__.name or ""
        self.version = codec.version_of(cls)
        self.entities = entities
        self.cold = cold
        self.dirty: set[str] = set()
        self.made: list[str] = []
        self.undo = undo
        self._codec = codec
        self.encode = codec.quick_encoder(cls)  # within `strictly()`
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
        if entity is None and key in self.cold:
            version, state = self.cold[key]
            entity = self._adopted(self._codec.decode_entity(self.name, version, state))
            self.keep(key, entity)
            del self.cold[key]
        return entity

    def peek(self, key: str) -> Entity:
        """An entity that is there, only to be read. One that is still encoded stays so."""
        cold = self.cold.get(key)
        return self.entities[key] if cold is None else self._codec.decode_entity(self.name, *cold)

    def encoded(self, key: str) -> bytes:
        """The state, in today's version, of an entity that is there."""
        cold = self.cold.get(key)
        if cold is None:
            return self._codec.encode_entity(self.entities[key])
        version, state = cold
        if version != self.version:  # brought up, so that the same state is always encoded the same
            return self._codec.encode_entity(self._codec.decode_entity(self.name, version, state))
        return state

    def cool(self, count: int) -> None:
        """Encodes so many of those that were made or touched first. Within `strictly()`, and not during a freeze.

        One that is dirty was touched lately: up to half of them are spared, and are last in the row from then on. So is
        one that cannot be encoded: the next snapshot tells.
        """
        spared: list[str] = []
        done = 0
        try:
            for key in self.made[:count]:
                if key in self.dirty and len(spared) < count // 2:
                    spared.append(key)
                else:
                    try:
                        self.cold[key] = self.version, self.encode(self.entities[key])
                    except UserWarning:
                        spared.append(key)
                    else:
                        del self.entities[key]
                done += 1
        finally:  # a disk may be full
            del self.made[:done]
            self.made += spared

    def count(self) -> int:
        return len(self.entities) + len(self.cold)

    def all_keys(self) -> list[str]:
        return [*self.entities, *self.cold]

    def take_back(self, entity: Entity, key: str, before: Any) -> bool:
        """Undoes whatever was done to an entity since `guard.captured`; whether that was anything."""
        changed = bool(self.undo) or not self.guard.unchanged(entity, key, before)
        if changed:
            self.undo.roll_back()
            self.guard.restore(entity, key, before)
        return changed

    def _adopted(self, entity: Entity) -> Entity:
        for name, shape in self._mutable:
            setattr(entity, name, adopt(getattr(entity, name), self.undo, shape))
        return entity


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
    guard = guard_for(home.cls, assigned_fields(command.handle, home.cls))
    handle = command.handle if around is None else around(command.handle)
    return Plan(home, home.entities, guard, guard.capture, guard.checked, replies_none, encode_reply, handle)
