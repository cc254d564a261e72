"""Slim forms of commands: what a handler sees of a command that was read from the log, at a third of the cost.

A pydantic model is made with a dict and a set of its own; a struct of msgspec has neither. A handler that uses its
command by its fields only (`self.whom`) cannot tell them apart, and its source says whether it does. So commands whose
fields are plain values, without validators, aliases or constraints, are decoded into a struct with the same fields, the
same `handle` and the same name. What the struct's decoder does not take, pydantic is asked about.
See docs/decisions/0027-slim-commands.md.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Callable
from typing import Any, Union, get_args, get_origin

import msgspec
from pydantic_core import PydanticUndefined

from engram.model.boundary import Boundary
from engram.model.command import Broadcast, Command
from engram.model.source import parameter_uses

_BASES = {*Command.__mro__}
_WHEN_MADE = ("__init__", "__new__", "model_post_init", "__getattr__", "__getattribute__")
_PLAIN = (str, int, float, bool, type(None))


def slim_form(cls: type[Command[Any, Any]]) -> type[msgspec.Struct] | None:
    """The struct for a command type; None if it is not certain that nobody could tell the difference."""
    if issubclass(cls, Broadcast) or not _is_plain(cls) or not _uses_fields_only(cls):
        return None
    fields: list[Any] = []
    for name, field in cls.model_fields.items():
        if field.default_factory is not None or field.metadata or field.alias or not _is_value(field.annotation):
            return None
        required = field.default is PydanticUndefined
        if not required and type(field.default) not in _PLAIN:
            return None
        fields.append((name, field.annotation) if required else (name, field.annotation, field.default))
    namespace = {"handle": cls.handle, "__engram__": cls.__engram__, "__whole__": cls, "__qualname__": cls.__qualname__}
    return msgspec.defstruct(
        cls.__name__,
        fields,
        module=cls.__module__,
        namespace=namespace,
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
        gc=False,  # nothing in it can refer to anything else
    )


def line_decoder(slim: type[msgspec.Struct], otherwise: Callable[[bytes], list[Any]]) -> Callable[[bytes], list[Any]]:
    """From a line of bodies to commands; what msgspec refuses, `otherwise` decides."""
    decode = msgspec.json.Decoder(list[slim]).decode  # type: ignore[valid-type]  # a type at run time

    def decoded(line: bytes) -> list[Any]:
        try:
            return decode(line)
        except msgspec.DecodeError:
            return otherwise(line)

    return decoded


def whole(command: Command[Any, Any] | msgspec.Struct) -> Command[Any, Any]:
    """The command as its author wrote it."""
    if not isinstance(command, msgspec.Struct):
        return command
    written: type[Command[Any, Any]] = command.__whole__  # type: ignore[attr-defined]  # put there by `slim_form`
    return written.model_validate(msgspec.structs.asdict(command))


def _is_plain(cls: type[Command[Any, Any]]) -> bool:
    """No validators, no computed or private fields, no configuration, no code of its own when one is made."""
    decorators = cls.__pydantic_decorators__
    own = any(getattr(decorators, kind) for kind in decorators.__dataclass_fields__)
    config = {**cls.model_config} == {**Boundary.model_config}
    made = any(name in vars(base) for base in cls.__mro__ if base not in _BASES for name in _WHEN_MADE)
    return config and not made and not own and not cls.__private_attributes__


def _is_value(annotation: Any) -> bool:
    if get_origin(annotation) in (Union, types.UnionType):
        rest = [tp for tp in get_args(annotation) if tp is not type(None)]
        return len(rest) == 1 and rest[0] in _PLAIN
    return annotation in _PLAIN


def _uses_fields_only(cls: type[Command[Any, Any]]) -> bool:
    uses = parameter_uses(cls.handle, 0)
    return uses is not None and all(isinstance(ctx, ast.Load) and name in cls.model_fields for name, ctx in uses)
