"""What changed between two schemas of an app, type by type."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

from engram.codec.rendering import REFERENCE
from engram.codec.schema import ClassSchema, FieldSchema, Schema, TypeSchema, references


class Change(NamedTuple):
    """One change of a shape. `compatible`: what was written before still reads as it is, and means the same."""

    what: str  # added, removed, renamed, retyped, default, order, entity
    field: str
    of: str  # the class that has the field, if it is not the type itself
    old: FieldSchema | None
    new: FieldSchema | None
    text: str
    compatible: bool = False
    became: str = ""  # the new name of a field that was renamed


def changes_of(before: Schema, after: Schema, old: TypeSchema, new: TypeSchema) -> list[Change]:
    """What changed in the shape of a type: in its own fields, and in the classes without a name within it."""
    compared = _Comparison(_Side(before, old.within), _Side(after, new.within), set())
    found = list(compared.classes(old, new, ""))
    if old.entity != new.entity:
        found.append(Change("entity", "", "", None, None, f"it is for {new.entity}, and was for {old.entity}"))
    return found


def same_result(before: Schema, after: Schema, old: TypeSchema, new: TypeSchema) -> bool:
    """Whether replies or answers look as before."""
    return _Comparison(_Side(before, old.within), _Side(after, new.within), set()).same(old.result, new.result)


class _Side(NamedTuple):
    """Where the references of a type lead to."""

    schema: Schema
    within: dict[str, ClassSchema]

    def resolve(self, reference: str) -> tuple[ClassSchema | TypeSchema | None, _Side]:
        if reference[0] == "#":
            return self.within.get(reference[1:]), self
        value = self.schema.values.get(reference[1:])
        return value, self if value is None else _Side(self.schema, value.within)

    def version(self, reference: str) -> int:
        """Of a named value; a class without a name is the first version of one that it becomes."""
        value = self.schema.values.get(reference[1:]) if reference[0] == "@" else None
        return 1 if value is None else value.version


class _Comparison(NamedTuple):
    """Compares types across two schemas. `seen` has the pairs of references that were met: in a recursive type they
    are taken for equal where they come again, and each pair is told once."""

    old: _Side
    new: _Side
    seen: set[tuple[str, str, int, int]]

    def classes(self, old: ClassSchema | TypeSchema, new: ClassSchema | TypeSchema, of: str) -> Iterator[Change]:
        gone = [name for name in old.fields if name not in new.fields]
        added = [name for name in new.fields if name not in old.fields]
        for name in gone:
            alike = next((n for n in added if self._alike(old.fields[name], new.fields[n])), None)
            if alike is None:
                text = f"{_named(name, of)} is gone ({told(old.fields[name])})"
                yield Change("removed", name, of, old.fields[name], None, text)
            else:
                added.remove(alike)
                now = f"{alike} is new ({told(new.fields[alike])})"
                text = f"{_named(name, of)} is gone and {now}, which looks like a rename"
                yield Change("renamed", name, of, old.fields[name], new.fields[alike], text, became=alike)
        for name in added:
            field = new.fields[name]
            text = f"{_named(name, of)} is new ({told(field)})"
            yield Change("added", name, of, None, field, text, field.has_default and not new.array)
        for name in old.fields:
            if name in new.fields:
                yield from self._field(name, of, old.fields[name], new.fields[name])
        if (old.array or new.array) and (old.array != new.array or list(old.fields) != list(new.fields)):
            yield Change("order", "", of, None, None, f"the fields of {of or 'it'} have other places in an array")

    def _alike(self, old: FieldSchema, new: FieldSchema) -> bool:
        return _Comparison(self.old, self.new, set()).same(old.type, new.type)

    def _field(self, name: str, of: str, old: FieldSchema, new: FieldSchema) -> Iterator[Change]:
        if _bare(old.type) == _bare(new.type):
            yield from self._inner(name, of, old, new)
        else:
            text = f"{_named(name, of)} was {old.type} and is {new.type}"
            yield Change("retyped", name, of, old, new, text, _is_wider(old.type, new.type))
        if _default(old) != _default(new):
            text = f"{_named(name, of)} had {_default(old)} and has {_default(new)}"
            yield Change("default", name, of, old, new, text, new.has_default)
        if (old.alias, old.optional) != (new.alias, new.optional):
            text = f"{_named(name, of)} may be missing, or is called otherwise in JSON"
            yield Change("retyped", name, of, old, new, text)

    def _inner(self, name: str, of: str, old: FieldSchema, new: FieldSchema) -> Iterator[Change]:
        """Changes of what two types of the same form refer to."""
        for one, other in zip(references(old.type), references(new.type), strict=True):
            if not self._may_be_same(one, other):
                text = f"{_named(name, of)} held {self._value(one, self.old)} and holds {self._value(other, self.new)}"
                yield Change("retyped", name, of, old, new, text)
                continue
            # Names of classes mean something in their own type only.
            pair = one, other, id(self.old.within), id(self.new.within)
            if pair not in self.seen and one[0] + other[0] != "@@":
                self.seen.add(pair)
                (was, old_side), (now, new_side) = self.old.resolve(one), self.new.resolve(other)
                if was is not None and now is not None:
                    yield from _Comparison(old_side, new_side, self.seen).classes(was, now, other[1:])

    def _may_be_same(self, one: str, other: str) -> bool:
        if one[0] + other[0] == "@@":
            return one == other
        return self.old.version(one) == self.new.version(other) == 1

    @staticmethod
    def _value(reference: str, side: _Side) -> str:
        version = side.version(reference)
        return reference if version == 1 else f"{reference} of version {version}"

    def same(self, old: str, new: str) -> bool:
        """Whether two types are the same, whatever their classes are called."""
        field = FieldSchema(type=old), FieldSchema(type=new)
        return _bare(old) == _bare(new) and not any(self._inner("", "", *field))


def told(field: FieldSchema) -> str:
    """A field for people: its type and default."""
    return f"{field.type}, {_default(field)}" if field.has_default else field.type


def _default(field: FieldSchema) -> str:
    if field.made:
        return "a default that is made each time"
    if "default" not in field.model_fields_set:
        return "no default"
    return f"default {json.dumps(field.default, ensure_ascii=False)}"


def _named(name: str, of: str) -> str:
    return f"field {name} of {of}" if of else f"field {name}"


def _bare(text: str) -> str:
    """A type without the names of what it refers to."""
    return REFERENCE.sub(lambda found: found[0] if found[0][0] == '"' else "?", text)


def _is_wider(old: str, new: str) -> bool:
    """Whether a type takes all that another takes, as far as their texts tell: a union or a choice with more in it."""
    for separator in (" | ", ", "):
        before, after = (text.removeprefix("one of ").split(separator) for text in (old, new))
        if set(before) < set(after) and (separator == " | " or old.startswith("one of ")):
            return True
    return False
