"""What must be captured of an entity before a handler runs, so that its assignments can be taken back.

Containers and parts note their own changes; what is left are assignments to the entity's own fields. Most handlers
use their entity only by its fields (`user.posts`, `user.count += 1`), and then their source says which fields they
can assign: only those are captured, often none. A handler that lets the entity out of sight, by passing it to a
function or calling a method of it, gets all fields captured. See docs/decisions/0004-undo.md.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from operator import attrgetter, is_
from types import CodeType
from typing import Any, NamedTuple

from engram.errors import Misuse
from engram.image.undo import UndoLog, adopt, field_shapes
from engram.model.entity import Entity
from engram.model.shape import Shape


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
    """The fields that a handler can assign; None when its source does not tell.

    It tells if the entity is used by its fields only, and if the source is that of the running code: files change.
    Looked up once per handler and process, when the first image is made; the only file that an image ever reads.
    """
    known = _known(handle, entity)
    return None if known is None else known.assigned


def used_fields(handle: Callable[..., Any], entity: type[Entity]) -> frozenset[str] | None:
    """The fields that a handler can see or change, in whatever way; None when its source does not tell."""
    known = _known(handle, entity)
    return None if known is None else known.used


class _Fields(NamedTuple):
    assigned: frozenset[str]
    used: frozenset[str]


_KNOWN: dict[tuple[Any, Any], _Fields | None] = {}


def _known(handle: Callable[..., Any], entity: type[Entity]) -> _Fields | None:
    asked: tuple[Any, Any] = handle, entity
    if asked not in _KNOWN:
        _KNOWN[asked] = _read(handle, frozenset(field_shapes(entity)))
    return _KNOWN[asked]


def _read(handle: Callable[..., Any], fields: frozenset[str]) -> _Fields | None:
    try:
        source = textwrap.dedent(inspect.getsource(handle))
        function = ast.parse(source).body[0]
        running = handle.__code__
        if not isinstance(function, ast.FunctionDef) or function.decorator_list or running.co_freevars:
            return None
        module = compile(ast.Module([function], []), "handle", "exec")
        compiled = next(c for c in module.co_consts if isinstance(c, CodeType) and c.co_name == running.co_name)
        if (compiled.co_code, compiled.co_names) != (running.co_code, running.co_names):
            return None
        parameter = (function.args.posonlyargs + function.args.args)[1].arg
    except (OSError, TypeError, SyntaxError, IndexError, AttributeError, StopIteration):
        return None
    return _fields(function, parameter, fields)


def _fields(function: ast.FunctionDef, parameter: str, fields: frozenset[str]) -> _Fields | None:
    assigned = set()
    used = set()
    by_field = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == parameter:
            if node.attr not in fields or isinstance(node.ctx, ast.Del):
                return None
            by_field.add(node.value)
            used.add(node.attr)
            if isinstance(node.ctx, ast.Store):
                assigned.add(node.attr)
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node.id == parameter and node not in by_field:
            return None  # it goes where this cannot look
    return _Fields(frozenset(assigned), frozenset(used))
