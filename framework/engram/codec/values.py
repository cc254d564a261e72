"""Between values of declared types and JSON: replies, answers, rows; as commands and state are encoded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pydantic_core
from pydantic import PydanticUserError, TypeAdapter, ValidationError

from engram.model.app import result_of
from engram.model.entity import STATE_CONFIG


def adapter_of(tp: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(tp, config=STATE_CONFIG)
    except PydanticUserError:  # a model or dataclass has a configuration of its own
        return TypeAdapter(tp)


def result_adapter(cls: type[Any]) -> TypeAdapter[Any]:
    """For the replies of a command, or the answers of a query."""
    return adapter_of(result_of(cls))


_PLAIN: dict[Any, type] = {"str": str, "int": int, "bool": bool}


def strict_encoder(adapter: TypeAdapter[Any]) -> Callable[[Any], bytes]:
    """To JSON. It raises pydantic's error when a value is not of the declared type."""
    encode: Callable[[Any], bytes] = partial(adapter.serializer.to_json, warnings="error")
    schema: Any = adapter.core_schema
    plain = None if "serialization" in schema else _PLAIN.get(schema["type"])
    if plain is not None:
        return partial(_encode_plain, plain, encode)
    try:
        adapter.validate_python(None)
    except ValidationError:
        return partial(_encode_something, encode)
    return encode


def _encode_plain(plain: type, encode: Callable[[Any], bytes], value: Any) -> bytes:
    # Of this very type there is nothing to refuse, and to look for it takes several times as long.
    return pydantic_core.to_json(value) if type(value) is plain else _encode_something(encode, value)


def _encode_something(encode: Callable[[Any], bytes], value: Any) -> bytes:
    if value is None:  # pydantic writes null for None, whatever the type is
        raise pydantic_core.PydanticSerializationError("None is not of the declared type: is a return missing?")
    return encode(value)
