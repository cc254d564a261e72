"""Named values: types inside of state, commands and events that have a version of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from engram.model.boundary import Boundary
from engram.model.declared import Declared
from engram.model.entity import Entity

T = TypeVar("T")


def value(*, name: str, version: int = 1) -> Callable[[type[T]], type[T]]:
    """Gives a frozen dataclass or pydantic model a name and a version of its own:

        @value(name="money", version=2)
        @dataclass(frozen=True, slots=True)
        class Money:
            amount: int
            currency: str

    It evolves on its own, wherever it is: with `@upcaster(Money, from_version=1)`, and without new versions of what
    holds it. A value type without a name is a piece of whatever holds it. For a `Part`, the class statement has the
    same keywords: `class Post(Part, name="post", version=2)`.
    """

    def declare(cls: type[T]) -> type[T]:
        cls.__engram__ = Declared(name, version)  # type: ignore[attr-defined]  # read by `declared_value`
        return cls

    return declare


def declared_value(cls: Any) -> Declared | None:
    """What a value type declares of itself; None for other types, and for value types without a name."""
    if not isinstance(cls, type) or issubclass(cls, Entity | Boundary):
        return None
    # Its own word, not that of an ancestor: two types of one name could not be told apart.
    declared = cls.__dict__.get("__engram__")
    if isinstance(declared, Declared) and (declared.name is not None or declared.version != 1):
        return declared
    return None
