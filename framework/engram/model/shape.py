"""Which types may be part of state, and which of them can change in place.

State must be undone in time that follows the change, not the size, and must come back from JSON as it was.
That allows immutable values, `list` and `dict`, and `Part`s, nested as you like. Sets are refused: they
iterate in an order that differs from process to process, so two replays would disagree.
"""

from __future__ import annotations

import dataclasses
import types
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, NewType, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from pydantic import BaseModel

from engram.model.entity import Part

_IMMUTABLE = (str, int, float, bool, bytes, type(None), datetime, date, time, timedelta, Decimal, UUID)
_KEYS = (str, int, date, datetime, UUID)


class Shape(IntEnum):
    """How a field's value can change in place. Ordered: a mix of shapes is the greatest of them."""

    FIXED = 0  # immutable all the way down
    FLAT = 1  # a list or dict of fixed values
    NESTED = 2  # a part, or containers within containers


class Refused(Exception):
    """Why a type cannot be part of state."""


def state_shape(tp: Any) -> Shape:
    """The shape of a field annotated `tp`; raises `Refused` with the reason and the way out."""
    return _Reader(seen=()).shape(tp)


def part_fields(part: type[Any]) -> dict[str, Any]:
    """The annotations of a dataclass's fields, resolved."""
    hints = get_type_hints(part, include_extras=True)
    return {f.name: hints[f.name] for f in dataclasses.fields(part)}


def find_set(tp: Any, seen: frozenset[Any] = frozenset()) -> str | None:
    """The first set type within `tp`, as text; None if there is none."""
    if tp in (set, frozenset) or get_origin(tp) in (set, frozenset):
        return str(tp)
    if not isinstance(tp, type) or get_origin(tp) is not None:
        inner: list[Any] = list(get_args(tp))
    elif tp in seen:
        inner = []
    elif issubclass(tp, BaseModel):
        inner = [f.annotation for f in tp.model_fields.values()]
    elif dataclasses.is_dataclass(tp):
        inner = list(part_fields(tp).values())
    elif issubclass(tp, (tuple, dict)):  # a NamedTuple, a TypedDict
        inner = list(get_type_hints(tp).values())
    else:
        inner = []
    seen |= {tp} if isinstance(tp, type) else frozenset()
    return next(filter(None, (find_set(t, seen) for t in inner)), None)


@dataclasses.dataclass(frozen=True)
class _Reader:
    seen: tuple[type, ...]

    def shape(self, tp: Any) -> Shape:  # noqa: PLR0911 - one return per kind of type
        if isinstance(tp, NewType):
            return self.shape(tp.__supertype__)
        origin, args = get_origin(tp), get_args(tp)
        if origin is Annotated:
            return self.shape(args[0])
        if origin is Literal or tp is None:
            return Shape.FIXED
        if origin in (Union, types.UnionType):
            return max(self.shape(a) for a in args)
        container = origin or tp
        if container in (list, dict):
            return self._container(container, args)
        if container is tuple:
            return self._tuple(args)
        if container in (set, frozenset):
            raise Refused(f"{_name(tp)} iterates in no fixed order: use dict[..., None] or a sorted list")
        if isinstance(tp, type):
            return self._class(tp)
        raise Refused(f"{_name(tp)} is not a type that can be kept: {_ALLOWED}")

    def _container(self, container: type, args: tuple[Any, ...]) -> Shape:
        if not args:
            raise Refused(f"{container.__name__} says not what it holds: write list[str], dict[str, int], ...")
        if container is dict:
            key = args[0].__supertype__ if isinstance(args[0], NewType) else args[0]
            if not (isinstance(key, type) and _is_key(key)):
                raise Refused(
                    f"a dict's keys must be str, int, date, datetime, UUID, IntEnum or an Enum of str, not {_name(key)}"
                )
        return Shape.FLAT if self.shape(args[-1]) is Shape.FIXED else Shape.NESTED

    def _tuple(self, args: tuple[Any, ...]) -> Shape:
        for arg in args:
            if arg is not Ellipsis and self.shape(arg) is not Shape.FIXED:
                raise Refused(f"a tuple cannot hold {_name(arg)}, which changes in place: use a list, or a Part")
        return Shape.FIXED

    def _class(self, tp: type) -> Shape:
        if issubclass(tp, (*_IMMUTABLE, Enum)):
            return Shape.FIXED
        if tp in self.seen:  # a recursive type, whose fields are being looked at already
            return Shape.NESTED if issubclass(tp, Part) else Shape.FIXED
        inner = _Reader((*self.seen, tp))
        if issubclass(tp, Part):
            if not hasattr(tp, "__dataclass_fields__") or tp.__dictoffset__:
                raise Refused(f"{tp.__name__} is a Part but not @dataclass(slots=True)")
            for annotation in part_fields(tp).values():
                inner.shape(annotation)
            return Shape.NESTED
        for field, annotation in _frozen_fields(tp).items():
            if inner.shape(annotation) is not Shape.FIXED:
                raise Refused(f"{tp.__name__}.{field} of a frozen type can change in place: use a tuple")
        return Shape.FIXED


def _is_key(tp: type) -> bool:
    # A key is text in JSON. Only for enums of str, and for IntEnum, is there a way back from it.
    return issubclass(tp, _KEYS) or (issubclass(tp, Enum) and all(isinstance(m.value, str) for m in tp))


def _frozen_fields(tp: type) -> dict[str, Any]:
    if issubclass(tp, BaseModel):
        if not tp.model_config.get("frozen"):
            raise Refused(f"{tp.__name__} is a mutable pydantic model: make it frozen, or a Part")
        return {name: f.annotation for name, f in tp.model_fields.items()}
    if dataclasses.is_dataclass(tp):
        if not tp.__dataclass_params__.frozen:  # type: ignore[attr-defined]  # typeshed hides it
            raise Refused(f"{tp.__name__} is a mutable dataclass: derive it from engram.Part, or freeze it")
        return part_fields(tp)
    if issubclass(tp, tuple) and hasattr(tp, "_fields"):
        return get_type_hints(tp, include_extras=True)
    raise Refused(f"{tp.__name__} is not a type that can be kept: {_ALLOWED}")


_ALLOWED = (
    "state holds str, int, float, bool, bytes, dates, Decimal, UUID, Enum, tuple, frozen dataclasses "
    "and models, Part, and list and dict of these"
)


def _name(tp: Any) -> str:
    return tp.__name__ if isinstance(tp, type) and not get_args(tp) else str(tp).replace("typing.", "")
