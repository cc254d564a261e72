"""The undo log, and how values become part of an image."""

from __future__ import annotations

from typing import Any

from engram.image.tracked import TrackedList, tracked_types
from engram.model.entity import Part
from engram.model.shape import Shape, part_fields, state_shape


class UndoLog(list[tuple[Any, ...] | TrackedList]):
    """How to take back what the running handler did, newest last: functions with their arguments, or a list whose
    last element is to be popped.

    `unsettled` holds (holder, place, value) for everything mutable that was put into a container or part:
    after the command it is adopted, so that what the next command does to it is noted in turn.
    """

    __slots__ = ("types", "unsettled")

    def __init__(self) -> None:
        super().__init__()
        self.types = tracked_types(self)
        self.unsettled: list[tuple[Any, Any, Any]] = []

    def roll_back(self) -> None:
        """Takes everything back, newest first."""
        while self:
            noted = self.pop()
            if isinstance(noted, TrackedList):
                list.pop(noted)
            else:
                undo, *arguments = noted
                undo(*arguments)
        self.unsettled.clear()

    def settle(self) -> None:
        """Adopts what was put in, and forgets how to take back."""
        if self.unsettled:
            for holder, place, value in self.unsettled:
                _settle(holder, place, value, self)
            self.unsettled.clear()
        self.clear()


def adopt(value: Any, undo: UndoLog, shape: Shape = Shape.NESTED) -> Any:
    """`value` as the image keeps it: a list or dict becomes a tracked copy, a part gets the undo log.

    What already belongs to an image is copied: stored in two places it becomes two, in memory as it will
    be after a restart. With `shape` FLAT the elements are immutable and are not looked at.
    """
    nested, types = shape is Shape.NESTED, undo.types
    if isinstance(value, list):
        return types.nested_list.track(adopt(v, undo) for v in value) if nested else types.flat_list.track(value)
    if isinstance(value, dict):
        if nested:
            return types.nested_dict.track({k: adopt(v, undo) for k, v in value.items()})
        return types.flat_dict.track(value)
    if isinstance(value, Part):
        return _adopt_part(value, undo)
    return value


def _adopt_part(part: Part, undo: UndoLog) -> Part:
    cls = type(part)
    fields = field_shapes(cls)
    if part._undo is not None:
        twin = cls.__new__(cls)
        for name in fields:
            object.__setattr__(twin, name, getattr(part, name))
        part = twin
    for name, shape in fields.items():
        if shape is not Shape.FIXED:
            object.__setattr__(part, name, adopt(getattr(part, name), undo, shape))
    object.__setattr__(part, "_undo", undo)
    return part


_SHAPES: dict[type, dict[str, Shape]] = {}


def field_shapes(cls: type[Any]) -> dict[str, Shape]:
    """The fields of an entity or part class with their shapes; worked out once per class."""
    shapes = _SHAPES.get(cls)
    if shapes is None:
        shapes = _SHAPES[cls] = {name: state_shape(tp) for name, tp in part_fields(cls).items()}
    return shapes


def _settle(holder: Any, place: Any, value: Any, undo: UndoLog) -> None:
    if isinstance(holder, dict):
        if holder.get(place) is value:  # else it was replaced or removed before the command ended
            dict.__setitem__(holder, place, adopt(value, undo))
    elif isinstance(holder, list):
        # Later changes of the same command may have moved it; most often it is still at the end.
        for index in range(len(holder) - 1, -1, -1):
            if holder[index] is value:
                list.__setitem__(holder, index, adopt(value, undo))
                break
    elif getattr(holder, place) is value:
        object.__setattr__(holder, place, adopt(value, undo, field_shapes(type(holder))[place]))
