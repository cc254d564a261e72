"""The pydantic base of everything that crosses a boundary: commands, queries, events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self, get_args

from pydantic import BaseModel, ConfigDict

from engram.model.declared import UNDECLARED, Declared


class Boundary(BaseModel):
    """Frozen, and closed: a field that is not declared is refused. Encoded by name, also where a field has an alias."""

    model_config = ConfigDict(
        frozen=True,
        populate_by_name=True,
        extra="forbid",
        ser_json_bytes="base64",
        val_json_bytes="base64",
        ser_json_inf_nan="strings",
    )
    __engram__: ClassVar[Declared] = UNDECLARED

    def __init_subclass__(cls, *, name: str | None = None, version: int = 1, **config: Any) -> None:
        super().__init_subclass__(**config)
        cls.__engram__ = Declared(name, version)

    @classmethod
    def __pydantic_init_subclass__(cls, **_keywords: Any) -> None:
        """Takes the keywords that `__init_subclass__` has already read."""

    # What is of the wrong type, or out of bounds, could be logged and never be read again: none is ever made.

    @classmethod
    def model_construct(cls, _fields_set: set[str] | None = None, **values: Any) -> Self:  # type: ignore[override]  # the plugin makes it one without values
        """As the constructor: validated."""
        return cls.model_validate(values)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with other values, validated."""
        copy = super().model_copy(deep=deep)
        return copy if update is None else self.model_validate({**copy.__dict__, **update})


def type_arguments(cls: type[Any], base: type[Any]) -> tuple[Any, ...] | None:
    """What `cls` put between the brackets of its generic `base`: `(User, None)` for `Command[User, None]`."""
    for ancestor in cls.__mro__:
        generic: dict[str, Any] = getattr(ancestor, "__pydantic_generic_metadata__", {})
        if generic.get("origin") is base:
            return tuple(generic["args"])
    for ancestor in getattr(cls, "__orig_bases__", ()):
        if getattr(ancestor, "__origin__", None) is base:
            return get_args(ancestor)
    return None
