"""The schema of an app: every named type with its version and shape, as text that reads well in a diff.

A type is written as in Python, without what does not change its JSON: `dict[str, datetime]`, `int (ge=0)`. `@post` is
the named value type `post`, which is in the schema on its own; `#Post` is a class without a name, whose fields are
listed with whatever holds it, under `within`. Class names are for the reader alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from engram.codec.rendering import REFERENCE, Reader
from engram.errors import Misuse
from engram.model.app import App, entity_of, result_of
from engram.model.command import Command
from engram.model.form import Struct, form_of
from engram.model.query import Query

FORMAT = 1
KINDS = {"entity": "entities", "command": "commands", "query": "queries", "event": "events", "value": "values"}


class _Form(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FieldSchema(_Form):
    """A field: its type, and a default if it has one. `made` says that the default is another one each time, and
    `optional` that it may be missing without one."""

    type: str
    default: Any = None
    made: bool = False
    optional: bool = False
    alias: str | None = None

    @property
    def has_default(self) -> bool:
        return self.made or self.optional or "default" in self.model_fields_set


class ClassSchema(_Form):
    """The fields of a class. A NamedTuple is an array in JSON: its fields have places, and `array` says so."""

    fields: dict[str, FieldSchema]
    array: bool = False


class TypeSchema(_Form):
    """A named type. `within` has the classes without a name that it is made of; `entity` and `result` are what a
    command or query is for, and what it replies or answers."""

    version: int
    entity: str = ""
    result: str = ""
    fields: dict[str, FieldSchema]
    array: bool = False
    within: dict[str, ClassSchema] = {}


class Schema(_Form):
    """All named types of an app, by kind and name."""

    format: int = FORMAT
    app: str
    version: int
    entities: dict[str, TypeSchema] = {}
    commands: dict[str, TypeSchema] = {}
    queries: dict[str, TypeSchema] = {}
    events: dict[str, TypeSchema] = {}
    values: dict[str, TypeSchema] = {}

    def of_kind(self, kind: str) -> dict[str, TypeSchema]:
        found: dict[str, TypeSchema] = getattr(self, KINDS[kind])
        return found

    def holders(self, value: str) -> list[tuple[str, str]]:
        """Kind and name of what holds a named value in its fields, also inside of other values."""
        inside = {value}
        while more := {n for n, t in self.values.items() if inside & set(_references(t))} - inside:
            inside |= more
        kinds = [kind for kind in KINDS if kind != "value"]
        return [(k, n) for k in kinds for n, t in self.of_kind(k).items() if inside & set(_references(t))]


def schema_of(app: App) -> Schema:
    """The schema of an app as its code has it now."""
    registries: dict[str, Mapping[str, type[Any]]] = {
        "entities": app.entities,
        "commands": app.commands,
        "queries": app.queries,
        "events": app.events,
        "values": app.values,
    }
    types = {many: {name: _type_of(of[name]) for name in sorted(of)} for many, of in registries.items() if of}
    return Schema(format=FORMAT, app=app.name, version=app.version, **types)


def write_schema(schema: Schema) -> str:
    """The text of a baseline: sorted, one line per field."""
    return "\n".join(_lines(schema.model_dump(exclude_unset=True), "")) + "\n"


def read_schema(text: str, where: str) -> Schema:
    """What `write_schema` wrote. Raises `Misuse`, which names `where`, for anything else."""
    try:
        schema = Schema.model_validate_json(text)
    except ValidationError as problem:
        first = problem.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "the text"
        raise Misuse(f"{where} is not a schema that this Engram reads: {place}: {first['msg']}.") from None
    if schema.format != FORMAT:
        raise Misuse(f"{where} has format {schema.format}, and this Engram reads format {FORMAT}.")
    return schema


def _type_of(cls: type[Any]) -> TypeSchema:
    reader = Reader()
    told: dict[str, Any] = {"version": cls.__engram__.version}
    if issubclass(cls, Command | Query):
        told["entity"] = entity_of(cls).__engram__.name
        told["result"] = reader.text(form_of(result_of(cls)))
    told["fields"] = reader.fields(Struct(cls))
    within = reader.within()
    if within:
        told["within"] = {
            n: {"fields": f, "array": True} if array else {"fields": f} for n, (f, array) in within.items()
        }
    return TypeSchema.model_validate(told)


def _references(type_: TypeSchema) -> Iterator[str]:
    classes: Iterable[ClassSchema | TypeSchema] = (type_, *type_.within.values())
    for cls in classes:
        for field in cls.fields.values():
            yield from (ref[1:] for ref in references(field.type) if ref[0] == "@")


def references(text: str) -> list[str]:
    """The `@names` and `#Names` in a type, in their order."""
    return [found for found in REFERENCE.findall(text) if found[0] in "@#"]


def _lines(value: Any, indent: str) -> Iterator[str]:
    """JSON; a field, which has no objects in it but its default, is one line."""
    if not isinstance(value, dict) or not any(isinstance(v, dict) for k, v in value.items() if k != "default"):
        yield indent + json.dumps(value, ensure_ascii=False)
        return
    yield indent + "{"
    items = list(value.items())
    for number, (name, inner) in enumerate(items):
        comma = "," if number < len(items) - 1 else ""
        first, *rest = _lines(inner, indent + "  ")
        told = [f"{indent}  {json.dumps(name)}: {first.lstrip()}", *rest]
        yield from told[:-1]
        yield told[-1] + comma
    yield indent + "}"
