"""The skeleton of an upcaster, and of its test: from the shape in the baseline to that in the code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from engram.codec.changes import Change, changes_of
from engram.codec.schema import ClassSchema, FieldSchema, Schema, TypeSchema, references
from engram.errors import Misuse

_NEW_LINE = "\n"
_EXAMPLES: dict[str, Any] = {
    "str": "...",
    "int": 1,
    "float": 1.5,
    "bool": True,
    "bytes": "AA==",
    "None": None,
    "any": None,
    "datetime": "2024-01-01T12:00:00Z",
    "AwareDatetime": "2024-01-01T12:00:00Z",
    "date": "2024-01-01",
    "time": "12:00:00",
    "timedelta": "PT1H",
    "Decimal": "1.50",
    "UUID": "00000000-0000-4000-8000-000000000000",
}


def draft(before: Schema, after: Schema, kind: str, name: str, *, cls: type[Any], app: str) -> str:
    """Python source: the upcaster from the baseline's version to the next, and a test of it.

    `app` is the reference of the app, such as `sample_apps.social:app`. What cannot be known is marked with `...`.
    """
    old, new = before.of_kind(kind)[name], after.of_kind(kind)[name]
    changes = changes_of(before, after, old, new)
    if not changes:
        raise Misuse(f"{kind} {name} is as in the baseline: there is nothing to upcast.")
    version = old.version
    function = f"{name}_from_version_{version}"
    module, _, attribute = app.partition(":")
    example = _example_of(before, old, old.within)
    return f'''\
# In the code: version={version + 1} for {cls.__name__}, and {function} among the upcasters of App(...).

from engram import Json, upcaster

from {cls.__module__} import {cls.__name__}


@upcaster({cls.__name__}, from_version={version})
def {function}(old: Json) -> Json:
    """Version {version + 1} of {name}."""
{"".join(f"    {line}{_NEW_LINE}" for change in changes for line in _step(change))}    return old


# In its tests:

import json

from pydantic import TypeAdapter

from {module} import {attribute}
from {cls.__module__} import {cls.__name__}


def test_{name}_of_version_{version}_is_read():
    """What was written as version {version} is read as {cls.__name__} of today."""
    old = {example!r}
    new = {attribute}.upcast({cls.__name__}, {version}, old)

    assert TypeAdapter({cls.__name__}).validate_json(json.dumps(new)) == {cls.__name__}(...)
'''


def find_type(schema: Schema, wanted: str, classes: dict[tuple[str, str], type[Any]]) -> tuple[str, str]:
    """Kind and name of `user`, `entity:user` or `User`. Raises `Misuse` when there is none, or more than one."""
    kind, _, name = wanted.rpartition(":")
    found = [(k, n) for (k, n), cls in classes.items() if name in (n, cls.__name__) and kind in ("", k)]
    if len(found) == 1:
        return found[0]
    if found:
        choices = " or ".join(f"{k}:{n}" for k, n in found)
        raise Misuse(f"App {schema.app} has more than one {wanted}: write {choices}.")
    raise Misuse(f"App {schema.app} has no type {wanted}: write its name, such as user, entity:user or User.")


def _step(change: Change) -> Iterator[str]:
    yield f"# {change.text}"
    if change.of or change.what in ("order", "entity"):
        yield "..."
    elif change.what == "removed":
        yield f"del old[{_quoted(change.field)}]"
    elif change.what == "renamed":
        yield f"old[{_quoted(change.became)}] = old.pop({_quoted(change.field)})"
    elif change.what == "added" and change.new is not None:
        has = "default" in change.new.model_fields_set
        yield f"old[{_quoted(change.field)}] = {change.new.default!r}" if has else f"old[{_quoted(change.field)}] = ..."
    elif change.what == "retyped" and not change.compatible:
        yield f"old[{_quoted(change.field)}] = ..."


def _example_of(schema: Schema, cls: ClassSchema | TypeSchema, within: dict[str, ClassSchema]) -> Any:
    values = {name: _example(schema, field, within) for name, field in cls.fields.items()}
    return list(values.values()) if cls.array else values


def _example(schema: Schema, field: FieldSchema, within: dict[str, ClassSchema]) -> Any:  # noqa: PLR0911 - by type
    """A value that a field could have had: its default, or something of its type; `...` if that is not known."""
    if field.model_fields_set >= {"default"} and not str(field.default).startswith("@"):
        return field.default
    text = re.sub(r" \(.*\)$", "", field.type)
    if text in _EXAMPLES:
        return _EXAMPLES[text]
    if text.startswith("one of "):
        return json.loads(f"[{text.removeprefix('one of ')}]")[0]
    if text.startswith("dict["):
        return {}
    if text.endswith("None"):
        return None
    found = references(text)
    if found == [text] and text[0] == "#" and text[1:] in within:
        return _example_of(schema, within[text[1:]], within)
    if found == [text] and text[1:] in schema.values:
        value = schema.values[text[1:]]
        return _example_of(schema, value, value.within)
    return [] if re.match(r"(list|tuple|Sequence|deque)\[.*(\]|\.\.\.\])$", text) else "..."


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
