"""Named value types inside of other types: where they are, and how they are brought up to the versions of today."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Protocol, cast

from engram.model.form import (
    Bounded,
    Choice,
    Entries,
    Form,
    Items,
    OneOf,
    Plain,
    Row,
    Struct,
    fields_of,
    form_of,
    inner_forms,
)
from engram.model.upcaster import AtVersion
from engram.model.value import declared_value
from engram.model.version import Version, join_version

Versions = Mapping[str, int]
Bring = Callable[[Any, Versions], Any]


class Steps(Protocol):
    """Brings the own fields of a type from a version to that of today."""

    def __call__(self, of: type[Any], from_version: int, old: Any) -> Any: ...


def nested_types(annotation: Any) -> list[type[Any]]:
    """All named value types within a type, itself included, each once, however deep they are."""
    return [struct.cls for struct in _walk(form_of(annotation)) if declared_value(struct.cls) is not None]


def nested_versions(cls: type[Any]) -> dict[str, int]:
    """The versions of all named value types within a type, by name, those at version 1 included."""
    declared = (cast("Any", nested).__engram__ for nested in nested_types(cls))
    return {each.name or "": each.version for each in declared}


def written_version(cls: type[Any]) -> Version:
    """The version that objects of an entity, command, query or event are written with."""
    return join_version(cls.__engram__.version, nested_versions(cls))


def nested_problems(annotation: Any) -> list[str]:
    """Why named value types within a type could not be found again in its JSON."""
    forms: list[Form] = [form_of(annotation)]
    forms += [inner for struct in _walk(forms[0]) for inner in inner_forms(struct)]
    return list(dict.fromkeys(problem for form in forms for problem in _union_problems(form)))


class Nested:
    """Brings named values in the JSON of a type to their versions of today.

    What is to be done for a type is put together when it is first needed: functions for the places that can hold
    named values, and None for all others, which are not looked at.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._of_fields: dict[Any, Bring | None] = {}

    def bring_up(self, cls: type[Any], old: Any, versions: Versions) -> Any:
        """`old` is of the own version of today of `cls`; the values in it are of `versions`, or of 1.

        A value first takes the steps of its own type; then those in it come, where that type has them now. What does
        not look like its type is left as it is: decoding tells what is wrong with it.
        """
        bring = self._fields(Struct(cls))
        return old if bring is None else bring(old, versions)

    def _bring(self, form: Form) -> Bring | None:  # noqa: PLR0911 - one return per kind of form
        if not _holds_named(form):
            return None
        match form:
            case Struct():
                return self._struct(form)
            case Bounded(inner, _):
                return self._bring(inner)
            case OneOf(members):
                return self._one_of(members)
            case Items(_, item):
                return _in_array(self._bring(item))
            case Row(items):
                return _in_row([self._bring(item) for item in items])
            case Entries(_, item):
                return _in_entries(self._bring(item))
            case _:
                return None

    def _struct(self, struct: Struct) -> Bring | None:
        declared, cls, steps = declared_value(struct.cls), struct.cls, self._steps
        fields = self._fields(struct)
        if declared is None:
            return fields
        name, today = declared.name or "", declared.version

        def bring(old: Any, versions: Versions) -> Any:
            if isinstance(old, dict):
                version = old.version if isinstance(old, AtVersion) else versions.get(name, 1)
                if version < today:
                    old = steps(cls, version, old)
            return old if fields is None else fields(old, versions)

        return bring

    def _fields(self, struct: Struct) -> Bring | None:
        """For the fields of a struct. In a recursive type it is asked for before it is known: then it is looked up
        again when it is needed."""
        if struct.cls in self._of_fields:
            known = self._of_fields[struct.cls]
            return self._again(struct.cls) if known is _BEING_MADE else known
        self._of_fields[struct.cls] = _BEING_MADE
        places = [(name, field.alias, self._bring(field.form)) for name, field in fields_of(struct).items()]
        found: Bring | None = None
        if any(bring is not None for _, _, bring in places):
            in_object = [(n, bring) for name, alias, bring in places if bring for n in (name, alias) if n is not None]
            found = _in_row([bring for _, _, bring in places]) if struct.is_array else _in_object(in_object)
        self._of_fields[struct.cls] = found
        return found

    def _again(self, cls: Any) -> Bring:
        def bring(old: Any, versions: Versions) -> Any:
            known = self._of_fields[cls]
            return old if known is None else known(old, versions)

        return bring

    def _one_of(self, members: tuple[Form, ...]) -> Bring:
        flat = list(_flat(members))
        alike = {json_type: [m for m in flat if _json_type(m) is json_type] for json_type in (dict, list)}
        only = {json_type: self._bring(found[0]) for json_type, found in alike.items() if len(found) == 1}
        tags = _tags(alike[dict]) if len(alike[dict]) > 1 else None
        by_tag = {} if tags is None else {value: self._bring(member) for value, member in tags[1].items()}

        def bring(old: Any, versions: Versions) -> Any:
            if isinstance(old, dict):
                chosen = only.get(dict) if tags is None else by_tag.get(json.dumps(old.get(tags[0])))
            else:
                chosen = only.get(list) if isinstance(old, list) else None
            return old if chosen is None else chosen(old, versions)

        return bring


def _being_made(old: Any, _versions: Versions) -> Any:
    return old


_BEING_MADE: Bring = _being_made


def _in_array(item: Bring | None) -> Bring | None:
    if item is None:
        return None

    def bring(old: Any, versions: Versions) -> Any:
        return [item(each, versions) for each in old] if isinstance(old, list) else old

    return bring


def _in_entries(item: Bring | None) -> Bring | None:
    if item is None:
        return None

    def bring(old: Any, versions: Versions) -> Any:
        return {key: item(each, versions) for key, each in old.items()} if isinstance(old, dict) else old

    return bring


def _in_row(items: Sequence[Bring | None]) -> Bring:
    def bring(old: Any, versions: Versions) -> Any:
        if not isinstance(old, list):
            return old
        pairs = zip_longest(items[: len(old)], old)  # what has too many places is for decoding to refuse
        return [each if item is None else item(each, versions) for item, each in pairs]

    return bring


def _in_object(fields: Sequence[tuple[str, Bring]]) -> Bring:
    def bring(old: Any, versions: Versions) -> Any:
        if not isinstance(old, dict):
            return old
        new = dict(old)
        for name, field in fields:
            if name in new:
                new[name] = field(new[name], versions)
        return new

    return bring


def _walk(form: Form, seen: set[Any] | None = None) -> Iterator[Struct]:
    """All structs of a form, each once, itself included."""
    seen = set() if seen is None else seen
    if isinstance(form, Struct):
        if form.cls in seen:
            return
        seen.add(form.cls)
        yield form
    for inner in inner_forms(form):
        yield from _walk(inner, seen)


def _holds_named(form: Form) -> bool:
    return any(declared_value(struct.cls) is not None for struct in _walk(form))


def _union_problems(form: Form) -> Iterator[str]:
    if isinstance(form, OneOf) and _holds_named(form) and not _can_choose(form.members):
        names = [m.cls.__name__ for m in _flat(form.members) if isinstance(m, Struct)]
        yield (
            f"in a union with {' and '.join(names)} it cannot be told which one an old value is: give each a field of "
            "the same name and a Literal type, or name none of them"
        )
    if not isinstance(form, Struct):
        for inner in inner_forms(form):
            yield from _union_problems(inner)


def _can_choose(members: tuple[Form, ...]) -> bool:
    for json_type in (dict, list):
        alike = [m for m in _flat(members) if _json_type(m) is json_type]
        if len(alike) > 1 and any(map(_holds_named, alike)) and _tags(alike) is None:
            return False
    return True


def _tags(members: list[Form]) -> tuple[str, dict[str, Form]] | None:
    """The field that tells structs apart, and which of them each of its values means."""
    if not all(isinstance(m, Struct) and not m.is_array for m in members):
        return None
    choices = [{n: _bare(f.form) for n, f in fields_of(cast("Struct", m)).items()} for m in members]
    for name, form in choices[0].items():
        tagged = [(c.get(name), m) for c, m in zip(choices, members, strict=True)]
        if isinstance(form, Choice) and all(isinstance(tag, Choice) for tag, _ in tagged):
            pairs = [(json.dumps(value, default=str), m) for tag, m in tagged for value in cast("Choice", tag).values]
            if len(dict(pairs)) == len(pairs):
                return name, dict(pairs)
    return None


def _flat(members: tuple[Form, ...]) -> Iterator[Form]:
    for member in map(_bare, members):
        if isinstance(member, OneOf):
            yield from _flat(member.members)
        else:
            yield member


def _bare(form: Form) -> Form:
    return _bare(form.inner) if isinstance(form, Bounded) else form


def _json_type(form: Form) -> type[Any] | None:
    match form:
        case Struct():
            return list if form.is_array else dict
        case Items() | Row():
            return list
        case Entries():
            return dict
        case Plain(tp) if tp in (Any, object):
            return dict
        case _:
            return None
