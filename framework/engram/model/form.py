"""The form that values of a type have as JSON: what a schema is written from, and how nested values are found."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from typing_extensions import TypeAliasType, is_typeddict

MISSING: Any = dataclasses.MISSING


class Plain(NamedTuple):
    """A value that holds no others. `type` is an annotation without arguments, or anything unknown."""

    type: Any


class Choice(NamedTuple):
    """One of some values: of a `Literal`, or of an enum."""

    values: tuple[Any, ...]


class Items(NamedTuple):
    """An array of any number of the same."""

    of: str
    item: Form


class Row(NamedTuple):
    """An array with something else in every place: a tuple."""

    items: tuple[Form, ...]


class Entries(NamedTuple):
    """An object with any keys."""

    key: Form
    item: Form


class OneOf(NamedTuple):
    """A union."""

    members: tuple[Form, ...]


class Bounded(NamedTuple):
    """The same with metadata, such as the bounds of a number."""

    inner: Form
    metadata: tuple[Any, ...]


class Struct(NamedTuple):
    """A class with fields, which `fields_of` has: an object, or an array if it is a NamedTuple."""

    cls: Any

    @property
    def is_array(self) -> bool:
        return issubclass(self.cls, tuple)


Form = Plain | Choice | Items | Row | Entries | OneOf | Bounded | Struct


class Field(NamedTuple):
    """One field of a struct. `default` is `MISSING` if it has none; `factory` makes it, if anything does. In JSON it is
    under its name or, in some models, under `alias`; one that is `optional` may be missing there."""

    form: Form
    default: Any = MISSING
    factory: Any = None
    alias: str | None = None
    optional: bool = False


def form_of(annotation: Any) -> Form:  # noqa: PLR0911 - one return per kind of type
    """The form of a type, its structs not looked into: they may be recursive."""
    if isinstance(annotation, NewType):
        return form_of(annotation.__supertype__)
    if isinstance(annotation, TypeAliasType):
        return form_of(annotation.__value__)
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return Bounded(form_of(args[0]), args[1:])
    if origin in (Required, NotRequired):
        return form_of(args[0])
    if origin is Literal:
        return Choice(args)
    if origin in (Union, types.UnionType):
        return OneOf(tuple(map(form_of, args)))
    if isinstance(origin, type) and args:
        return _container(annotation, origin, args)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return Choice(tuple(member.value for member in annotation))
    return Struct(annotation) if _is_struct(annotation) else Plain(annotation)


def fields_of(struct: Struct) -> dict[str, Field]:
    """The fields of a struct, in the order of its class statement."""
    cls = struct.cls
    if issubclass(cls, BaseModel):
        return {name: _of_info(field) for name, field in cls.model_fields.items()}
    hints = get_type_hints(cls, include_extras=True)
    if dataclasses.is_dataclass(cls):
        return {f.name: _of_dataclass(hints[f.name], f) for f in dataclasses.fields(cls) if f.init}
    if issubclass(cls, tuple):
        defaults: dict[str, Any] = getattr(cls, "_field_defaults", {})
        return {name: Field(form_of(hints[name]), defaults.get(name, MISSING)) for name in cls._fields}
    optional: frozenset[str] = cls.__optional_keys__
    return {name: Field(form_of(hint), optional=name in optional) for name, hint in hints.items()}


def inner_forms(form: Form) -> Iterator[Form]:
    """What a form is made of, one level down; the fields of a struct among it."""
    match form:
        case Items(_, item):
            yield item
        case Row(items):
            yield from items
        case Entries(key, item):
            yield key
            yield item
        case OneOf(members):
            yield from members
        case Bounded(inner, _):
            yield inner
        case Struct():
            for field in fields_of(form).values():
                yield field.form
        case _:
            pass


def _container(annotation: Any, origin: type, args: tuple[Any, ...]) -> Form:
    if issubclass(origin, tuple) and not hasattr(origin, "_fields"):
        if len(args) == 2 and args[1] is Ellipsis:
            return Items("tuple", form_of(args[0]))
        return Row(tuple(map(form_of, args)))
    if issubclass(origin, Mapping) and len(args) == 2:
        return Entries(form_of(args[0]), form_of(args[1]))
    if issubclass(origin, Collection) and len(args) == 1 and not _is_struct(origin):
        return Items(origin.__name__, form_of(args[0]))
    return Plain(annotation)


def _is_struct(annotation: Any) -> bool:
    if not isinstance(annotation, type):
        return is_typeddict(annotation)
    if issubclass(annotation, tuple):
        return hasattr(annotation, "_fields")
    return issubclass(annotation, BaseModel) or dataclasses.is_dataclass(annotation) or is_typeddict(annotation)


def _of_info(info: FieldInfo, annotation: Any = None) -> Field:
    form = form_of(info.annotation if annotation is None else annotation)
    if info.metadata:
        form = Bounded(form, tuple(info.metadata))
    default = MISSING if info.default in (PydanticUndefined, Ellipsis) else info.default
    alias = info.serialization_alias or info.alias
    return Field(form, default, info.default_factory, alias)


def _of_dataclass(annotation: Any, field: dataclasses.Field[Any]) -> Field:
    if isinstance(field.default, FieldInfo):
        return _of_info(field.default, annotation)
    factory = None if field.default_factory is dataclasses.MISSING else field.default_factory
    return Field(form_of(annotation), field.default, factory)
