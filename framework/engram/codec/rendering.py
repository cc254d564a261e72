"""Types as text for a schema. See `engram.codec.schema` for how it reads."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime, time
from typing import Any, get_args
from uuid import UUID

import annotated_types
import pydantic_core
from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter
from pydantic.fields import FieldInfo

from engram.model.form import (
    MISSING,
    Bounded,
    Choice,
    Entries,
    Field,
    Form,
    Items,
    OneOf,
    Plain,
    Row,
    Struct,
    fields_of,
    form_of,
)
from engram.model.value import declared_value

# Text in quotes, which may have anything in it, or a reference.
REFERENCE = re.compile(r'"(?:\\.|[^"\\])*"|[@#][A-Za-z0-9_]+')
# What a factory makes of these is another one each time, even if two at once happen to be equal.
_MOMENTARY = (date, datetime, time, UUID)

Fields = dict[str, dict[str, Any]]


class Reader:
    """Reads one named type, and remembers the classes without a name that it meets on the way."""

    def __init__(self) -> None:
        self._names: dict[Any, str] = {}

    def fields(self, struct: Struct) -> Fields:
        """The fields of a class as `FieldSchema` has them: sorted, or in their order where it is a NamedTuple."""
        fields = fields_of(struct)
        return {name: self._field(fields[name]) for name in (fields if struct.is_array else sorted(fields))}

    def within(self) -> dict[str, tuple[Fields, bool]]:
        """The classes without a name that were met, sorted by name: their fields, and whether they are arrays."""
        read: dict[str, tuple[Fields, bool]] = {}
        while missing := [(cls, name) for cls, name in self._names.items() if name not in read]:
            for cls, name in missing:
                read[name] = self.fields(Struct(cls)), Struct(cls).is_array
        return dict(sorted(read.items()))

    def text(self, form: Form) -> str:  # noqa: PLR0911 - one return per kind of form
        match form:
            case Plain(tp):
                return _plain(tp)
            case Choice(values):
                return f"one of {', '.join(sorted(json.dumps(_jsonable(v)) for v in values))}"
            case Items(of, item):
                return f"{of}[{self.text(item)}, ...]" if of == "tuple" else f"{of}[{self.text(item)}]"
            case Row(items):
                return f"tuple[{', '.join(map(self.text, items))}]"
            case Entries(key, item):
                return f"dict[{self.text(key)}, {self.text(item)}]"
            case OneOf(members):
                return " | ".join(sorted(dict.fromkeys(map(self.text, members)), key=_place_in_union))
            case Bounded(inner, metadata):
                bounds = sorted(set(_bounds(metadata)))
                return f"{self.text(inner)} ({', '.join(bounds)})" if bounds else self.text(inner)
            case Struct(cls):
                return self._reference(cls)

    def _reference(self, cls: Any) -> str:
        declared = declared_value(cls)
        if declared is not None:
            return f"@{declared.name}"
        if cls not in self._names:
            plain = re.sub(r"[^A-Za-z0-9_]+", "_", cls.__name__).strip("_")
            taken = self._names.values()
            names = [plain, *(f"{plain}_{number}" for number in range(2, len(taken) + 3))]
            self._names[cls] = next(name for name in names if name not in taken)
        return f"#{self._names[cls]}"

    def _field(self, field: Field) -> dict[str, Any]:
        told: dict[str, Any] = {"type": self.text(field.form)}
        if field.default is not MISSING:
            told["default"] = _jsonable(field.default)
        elif field.factory is not None:
            told |= _made(field.factory)
        if field.optional:
            told["optional"] = True
        if field.alias is not None:
            told["alias"] = field.alias
        return told


def _place_in_union(text: str) -> tuple[int, str]:
    """Values by their text, then references in the order they have, which new names of classes must not change."""
    rank = 2 if text == "None" else int(any(found[0] in "@#" for found in REFERENCE.findall(text)))
    return rank, "" if rank else text


def _made(factory: Callable[..., Any]) -> dict[str, Any]:
    try:
        one, other = factory(), factory()
    except Exception:  # noqa: BLE001 - it takes arguments, or cannot work now
        return {"made": True}
    text = _jsonable(one)
    if isinstance(one, _MOMENTARY) or json.dumps(text) != json.dumps(_jsonable(other)):
        return {"made": True}
    return {"default": text}


def _jsonable(value: Any) -> Any:
    """A default as JSON. Of a class it has the fields that differ from their own defaults, so that a new field in a
    class does not change the defaults of what holds it; of a named value it says only that."""
    declared = declared_value(type(value))
    if declared is not None:
        return f"@{declared.name}"
    form = form_of(type(value))
    if isinstance(form, Struct) and not form.is_array:
        own = {name: (getattr(value, name), field) for name, field in fields_of(form).items()}
        return {name: _jsonable(held) for name, (held, field) in own.items() if not _is_default(held, field)}
    if isinstance(value, Mapping):
        return {str(_jsonable(key)): _jsonable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(each) for each in value]
    return pydantic_core.to_jsonable_python(value, inf_nan_mode="strings", bytes_mode="base64", fallback=_type_name)


def _is_default(value: Any, field: Field) -> bool:
    if field.default is not MISSING:
        return bool(field.default == value)
    return field.factory is not None and bool(_made(field.factory).get("default", value) == _jsonable(value))


def _type_name(value: Any) -> str:
    return type(value).__name__


def _plain(tp: Any) -> str:
    if tp is None or tp is type(None):
        return "None"
    if tp in (Any, object):
        return "any"
    if not isinstance(tp, type) or get_args(tp):
        return _json_schema(tp)
    if tp.__module__.partition(".")[0] in ("builtins", "datetime", "decimal", "uuid", "pydantic", "enum", "pathlib"):
        return tp.__name__
    return _json_schema(tp)


def _json_schema(tp: Any) -> str:
    """Of a type that nothing else is known of: what pydantic makes of it, without texts for people."""
    try:
        schema = TypeAdapter(tp).json_schema(mode="serialization")
    except (PydanticSchemaGenerationError, PydanticUserError):
        return getattr(tp, "__name__", "any")
    return f"json {json.dumps(json.dumps(_bare(schema), sort_keys=True))}"


def _bare(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {name: _bare(inner) for name, inner in schema.items() if name not in ("title", "description")}
    return [_bare(inner) for inner in schema] if isinstance(schema, list) else schema


def _bounds(metadata: Iterable[Any]) -> Iterator[str]:
    for each in metadata:
        if isinstance(each, FieldInfo):
            yield from _bounds(each.metadata)
        elif isinstance(each, annotated_types.GroupedMetadata):
            yield from _bounds(each)
        elif isinstance(each, annotated_types.BaseMetadata):
            yield from _settings({name: getattr(each, name, None) for name in type(each).__annotations__})
        elif type(each).__name__ == "PydanticGeneralMetadata":
            yield from _settings(vars(each))
        elif not isinstance(each, str):
            yield type(each).__name__


def _settings(settings: Mapping[str, Any]) -> Iterator[str]:
    for name, value in settings.items():
        if value is not None:
            yield f"{name}={json.dumps(_jsonable(value))}"
