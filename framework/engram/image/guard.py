"""What must be captured of an entity before a handler runs, so that its assignments can be taken back.

Containers and parts note their own changes; what is left are assignments to the entity's own fields. Most handlers
use their entity only by its fields (`user.posts`, `user.count += 1`), and then their source says which fields they
can assign: only those are captured, often none. Methods and properties of the entity, and functions that it is passed
to by their names, are looked at as well. A handler that lets the entity out of sight in another way, such as in a list,
gets all fields captured. See docs/decisions/0004-undo.md and 0033-functions-are-followed.md.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from operator import attrgetter, is_
from typing import Any, NamedTuple

from engram.errors import Misuse
from engram.image.undo import UndoLog, adopt, field_shapes
from engram.model.entity import Entity
from engram.model.shape import Shape
from engram.model.source import Asked, Uses, assigned_last, object_uses, parameter_uses


class Guard(NamedTuple):
    """How one handler's assignments are taken back or made final.

    `whole`: all fields are captured, and the key may have changed. `mutable` has the captured fields that hold
    containers or parts, which come first in what `capture` returns.
    """

    whole: bool
    capture: Callable[[Entity], Any] | None
    names: tuple[str, ...]
    mutable: tuple[tuple[str, Shape], ...]

    def captured(self, entity: Entity) -> Any:
        """What `restore` and `unchanged` want to see again."""
        return () if self.capture is None else self.capture(entity)

    def unchanged(self, entity: Entity, key: str, before: Any) -> bool:
        """Whether no captured field was assigned."""
        return entity.key == key and all(map(is_, self._values(self.captured(entity)), self._values(before)))

    def restore(self, entity: Entity, key: str, before: Any) -> None:
        """Puts captured values back."""
        if self.whole:
            entity.key = key
        for name, value in zip(self.names, self._values(before), strict=True):
            setattr(entity, name, value)

    def _values(self, captured: Any) -> tuple[Any, ...]:
        # attrgetter gives a tuple only for two names and more
        return (captured,) if len(self.names) == 1 else captured

    @property
    def checked(self) -> bool:
        """Whether there is something to do after a handler that ended well."""
        return self.whole or bool(self.mutable)

    def settle(self, entity: Entity, key: str, before: Any, undo: UndoLog) -> None:
        """A list, dict or part that was assigned to a field becomes the image's own.

        Raises, and has changed nothing, if the key was changed or a field deleted.
        """
        if self.whole:
            if entity.key != key:
                raise Misuse(f"A handler changed the key of {key!r}; a key is for ever.")
            self.captured(entity)
        for (name, shape), old in zip(self.mutable, self._values(before), strict=False):
            value = getattr(entity, name)
            if value is not old:
                setattr(entity, name, adopt(value, undo, shape))


def guard_for(entity: type[Entity], assigned: frozenset[str] | None) -> Guard:
    """The guard for handlers that assign these fields; None for handlers of which that is not known."""
    shapes = field_shapes(entity)
    names = [name for name in shapes if name != "key" and (assigned is None or name in assigned)]
    names.sort(key=lambda name: shapes[name] is Shape.FIXED)  # stable: those with containers come first
    capture = attrgetter(*names) if names else None
    mutable = tuple((name, shapes[name]) for name in names if shapes[name] is not Shape.FIXED)
    return Guard(assigned is None or "key" in assigned, capture, tuple(names), mutable)


def assigned_fields(handle: Callable[..., Any], entity: type[Entity]) -> frozenset[str] | None:
    """The fields that a handler can assign; None when its source does not tell: it does if it uses the entity by its
    fields only."""
    uses = _field_uses(handle, entity)
    return None if uses is None else frozenset(name for name, how in uses if isinstance(how, ast.Store))


def captured_fields(handle: Callable[..., Any], entity: type[Entity]) -> frozenset[str] | None:
    """Those that must be put back when it raises: not the one that it assigns last of all. For a handler without
    a reply, whose effects nobody looks at after it."""
    assigned, last, shapes = assigned_fields(handle, entity), assigned_last(handle), field_shapes(entity)
    # What is put into a nested container is looked at after the handler, and that may go wrong. And a method or
    # property may assign the same field before.
    nothing_else = all(name in shapes for name, _ in parameter_uses(handle, 1) or ())
    simple = nothing_else and Shape.NESTED not in shapes.values() and entity.__setattr__ is object.__setattr__
    if assigned is None or last is None or last == "key" or not simple or shapes[last] is not Shape.FIXED:
        return assigned
    return assigned - {last}


def used_fields(handle: Callable[..., Any], entity: type[Entity]) -> frozenset[str] | None:
    """The fields that a handler can see or change, in whatever way; None when its source does not tell."""
    uses = _field_uses(handle, entity)
    return None if uses is None else frozenset(name for name, _ in uses)


def changed_fields(handle: Callable[..., Any], entity: type[Entity]) -> frozenset[str] | None:
    """Those that it can change; None when its source does not tell. What is only looked at changes if it is a
    container or a part; a container of fixed values not by the question what is in it."""
    uses, shapes = _field_uses(handle, entity), field_shapes(entity)
    if uses is None:
        return None
    harmless = {(ast.Load, Shape.FIXED), (Asked, Shape.FIXED), (Asked, Shape.FLAT)}
    return frozenset(name for name, how in uses if (type(how), shapes[name]) not in harmless)


def _field_uses(handle: Callable[..., Any], entity: type[Entity]) -> Uses | None:
    fields, uses = field_shapes(entity), object_uses(handle, 1, entity)
    if uses is None or any(name not in fields or isinstance(how, ast.Del) for name, how in uses):
        return None
    return uses
