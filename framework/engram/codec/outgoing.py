"""Commands and events on their way out of a handler, into the log.

What is put there must be readable: a record that cannot be decoded stops its partition. So a command is read back
before its sender's handler ends, where it can still be refused. That costs more than the encoding itself, and of most
types it is known that what was validated once is read back: those are only encoded.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any, Union, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo

from engram.model.boundary import Boundary
from engram.model.command import Broadcast
from engram.model.context import Outgoing
from engram.model.version import Version

_PLAIN = {str, int, bool, datetime}
_OWN_CODE = {"__get_pydantic_core_schema__", "__init__", "__new__", "model_post_init"}
_BOUNDS = (
    annotated_types.Ge,
    annotated_types.Gt,
    annotated_types.Le,
    annotated_types.Lt,
    annotated_types.MinLen,
    annotated_types.MaxLen,
)


def outgoing(cls: type[Boundary], version: Version) -> Outgoing:
    """How objects of a command or event type are encoded. It raises what would not be read back."""
    name = cls.__engram__.name or ""
    encode: Callable[[Boundary], bytes] = cls.__pydantic_serializer__.to_json
    if not reads_back(cls):
        encode = partial(_read_back, encode, cls.__pydantic_validator__.validate_json)
    return Outgoing(name, version, encode, issubclass(cls, Broadcast))


def _read_back(encode: Callable[[Boundary], bytes], decode: Callable[[bytes], Any], boundary: Boundary) -> bytes:
    body = encode(boundary)
    decode(body)
    return body


def reads_back(cls: type[Boundary]) -> bool:
    """Whether every object of the type is certain to be read back: nothing but plain fields, and no code of its own."""
    decorators = cls.__pydantic_decorators__
    own = (
        decorators.validators,
        decorators.field_validators,
        decorators.model_validators,
        decorators.root_validators,
        decorators.field_serializers,
        decorators.model_serializers,
        decorators.computed_fields,
    )
    if any(own) or cls.model_config != Boundary.model_config or _OWN_CODE & _defined(cls):
        return False
    return all(map(_is_plain, cls.model_fields.values()))


def _is_plain(field: FieldInfo) -> bool:
    if field.alias or field.validation_alias or field.serialization_alias or field.exclude:
        return False
    tp = _without_none(field.annotation)
    # A default is not validated: it may be out of its own field's bounds. And JSON cuts a time zone to minutes.
    bounded = field.is_required() and tp is not datetime
    return tp in _PLAIN and all(bounded and isinstance(bound, _BOUNDS) for bound in field.metadata)


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) in (Union, types.UnionType):
        some = [argument for argument in get_args(annotation) if argument is not type(None)]
        return some[0] if len(some) == 1 else annotation
    return annotation


def _defined(cls: type[Boundary]) -> set[str]:
    """What the class and its ancestors up to our own base define."""
    return {name for ancestor in cls.__mro__[: cls.__mro__.index(Boundary)] for name in vars(ancestor)}
