"""Entities and their parts: the plain objects that make up a memory image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import ConfigDict

from engram.model.declared import UNDECLARED, Declared

# One way to JSON for all state: bytes that are not UTF-8 and floats that are not finite survive it.
STATE_CONFIG = ConfigDict(extra="forbid", ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="strings")


class _Marked:
    """What an image notes on an entity itself, where a handler has brought it near: the round of snapshots in which it
    was last changed. No field: it is neither encoded nor compared."""

    __slots__ = ("_round",)

    _round: int


@dataclass(slots=True, kw_only=True)
class Entity(_Marked):
    """One keyed object in memory. Subclass it as a slotted dataclass and give every field a default:

        @dataclass(slots=True, kw_only=True)
        class User(Entity, name="user"):
            posts: list[str] = field(default_factory=list)

    An entity comes into being when the first command for its key is handled. Handlers change it in place;
    only they may. Fields hold plain immutable values, `list` and `dict` of them, and `Part`s.
    """

    __engram__: ClassVar[Declared] = UNDECLARED
    __pydantic_config__: ClassVar[ConfigDict] = STATE_CONFIG

    key: str

    def __init_subclass__(cls, *, name: str | None = None, version: int = 1) -> None:
        # dataclass(slots=True) makes the class a second time, without the keywords: keep the first word.
        if name is not None or "__engram__" not in cls.__dict__:
            cls.__engram__ = Declared(name, version)


# The key of what is shared: there is one of each type, and every partition has it.
EVERYWHERE = "*"


@dataclass(slots=True, kw_only=True)
class Shared(Entity):
    """One object that all partitions have, such as the rules of an application. Subclass it like an entity:

        @dataclass(slots=True, kw_only=True)
        class Rules(Shared, name="rules"):
            banned: dict[str, None] = field(default_factory=dict)

    It is changed by `Broadcast` commands only. Every handler can read it: `ctx.shared(Rules)`.
    """


class Part:
    """A mutable object inside an entity. Subclass it as a slotted dataclass:

        @dataclass(slots=True, kw_only=True)
        class Post(Part):
            text: str
            likes: int = 0

    A part belongs to one place in one entity: stored in two places, it is two parts after the command.
    Values that never change need no `Part`: use a frozen dataclass, a NamedTuple or a frozen pydantic model.

    A part without a name is a piece of its entity's shape. With `name=` and `version=` in its class statement it has
    a version of its own, and upcasters: see `engram.value`, which is the same for values that never change.
    """

    __slots__ = ("_undo",)
    __engram__: ClassVar[Declared] = UNDECLARED
    __pydantic_config__: ClassVar[ConfigDict] = STATE_CONFIG

    # The image's undo log once the part belongs to an entity; typed loosely because the image is a layer up.
    _undo: Any

    def __init_subclass__(cls, *, name: str | None = None, version: int = 1) -> None:
        # As in Entity: dataclass(slots=True) makes the class a second time, without the keywords.
        if name is not None or "__engram__" not in cls.__dict__:
            cls.__engram__ = Declared(name, version)

    def __new__(cls, *_args: Any, **_fields: Any) -> Any:
        part = object.__new__(cls)
        object.__setattr__(part, "_undo", None)
        return part

    def __setattr__(self, name: str, value: Any) -> None:
        undo = self._undo
        if undo is not None:
            old = getattr(self, name)
            undo.append((object.__setattr__, self, name, old))
            if value is not old and isinstance(value, (list, dict, Part)):
                undo.unsettled.append((self, name, value))
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__}.{name}: fields of a Part cannot be deleted")
