"""Hypothesis strategies made from an app's types."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from types import UnionType
from typing import Annotated, Any, Literal, NewType, Union, get_args, get_origin

import annotated_types
from hypothesis import strategies as st
from pydantic import AwareDatetime, BaseModel, ValidationError
from pydantic.fields import FieldInfo

from engram.errors import Misuse
from engram.model.app import App, entity_of
from engram.model.command import Broadcast, Command
from engram.model.context import check_key
from engram.model.entity import EVERYWHERE, Shared
from engram.model.query import Query
from engram.model.shape import part_fields

KEYS = ("ada", "bob", "cleo")
# The limits that Hypothesis keeps to by itself. It warns of others, which are left to the model to refuse.
_KNOWN = (
    annotated_types.Gt,
    annotated_types.Ge,
    annotated_types.Lt,
    annotated_types.Le,
    annotated_types.MinLen,
    annotated_types.MaxLen,
    annotated_types.Predicate,
)


def commands(
    app: App, *types: type[Command[Any, Any]], keys: Sequence[str] = KEYS
) -> st.SearchStrategy[tuple[str, Command[Any, Any]]]:
    """Pairs of a key and a command, of any of `types`, or of all of the app's commands if none are given.

        @given(st.lists(commands(app, Register, Follow, Unfollow)))
        def test_following_and_followers_agree(history): ...

    Fields follow their types and the limits in them (`Field(min_length=1)`, `ge=0`, `pattern=...`); what a model's
    own validators refuse is drawn again. Keys are few, so that commands meet, and about half of all texts are one
    of them, so that commands name each other's entities. Date-times are in UTC. A type that Hypothesis does not know
    is made known with its `register_type_strategy`. The key of a broadcast is that of what is shared.
    """
    for key in keys:
        check_key(key)
    for cls in types:
        if app.commands.get(cls.__engram__.name or "") is not cls:
            raise Misuse(f"{cls.__name__} is no command of app {app.name}: list it in App(commands=[...]).")
    if not keys:
        raise Misuse("No keys were given: commands need at least one.")
    chosen = types or tuple(app.commands.values())
    maker = _Maker(tuple(keys))
    some, everywhere = st.sampled_from(list(keys)), st.just(EVERYWHERE)
    return st.one_of(
        [st.tuples(everywhere if issubclass(cls, Broadcast) else some, maker.model(cls)) for cls in chosen]
    )


def queries(
    app: App, *types: type[Query[Any, Any]], keys: Sequence[str] = KEYS
) -> st.SearchStrategy[tuple[str, Query[Any, Any]]]:
    """Pairs of a key and a query, of any of `types`, or of all of the app's queries; made as `commands` are."""
    for cls in types:
        if app.queries.get(cls.__engram__.name or "") is not cls:
            raise Misuse(f"{cls.__name__} is no query of app {app.name}: list it in App(queries=[...]).")
    maker = _Maker(tuple(keys))
    some, everywhere = st.sampled_from(list(keys)), st.just(EVERYWHERE)
    chosen = types or tuple(app.queries.values())
    shared = [everywhere if issubclass(entity_of(cls), Shared) else some for cls in chosen]
    return st.one_of([st.tuples(key, maker.model(cls)) for key, cls in zip(shared, chosen, strict=True)])


class _Maker:
    """Makes strategies from types. One for each model and dataclass, or those that hold themselves would not end."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._keys = keys
        self._made: dict[type[Any], st.SearchStrategy[Any]] = {}

    def model(self, cls: type[BaseModel]) -> st.SearchStrategy[Any]:
        if cls not in self._made:
            self._made[cls] = st.deferred(lambda: self._model(cls))
        return self._made[cls]

    def _model(self, cls: type[BaseModel]) -> st.SearchStrategy[Any]:
        required: dict[str, st.SearchStrategy[Any]] = {}
        optional: dict[str, st.SearchStrategy[Any]] = {}
        for name, field in cls.model_fields.items():
            alias = field.validation_alias if isinstance(field.validation_alias, str) else name
            of = required if field.is_required() else optional
            of[alias] = st.from_type(self._limited(field.annotation, field.metadata))

        def made(values: dict[str, Any]) -> BaseModel | None:
            try:
                return cls.model_validate(values)
            except ValidationError:
                return None

        return st.fixed_dictionaries(required, optional=optional).map(made).filter(lambda model: model is not None)

    def _dataclass(self, cls: type[Any]) -> st.SearchStrategy[Any]:
        if cls not in self._made:
            self._made[cls] = st.deferred(
                lambda: st.builds(
                    cls, **{name: st.from_type(self._readable(tp)) for name, tp in part_fields(cls).items()}
                )
            )
        return self._made[cls]

    def _readable(self, tp: Any) -> Any:
        """`tp` as Hypothesis can read it: it knows the limits of annotated_types, but not pydantic's `Field`."""
        if isinstance(tp, NewType):
            return self._readable(tp.__supertype__)
        origin, args = get_origin(tp), get_args(tp)
        if origin is Annotated:
            return self._limited(args[0], args[1:])
        if origin in (Union, UnionType):
            return Union[tuple(map(self._readable, args))]  # noqa: UP007 - made at run time
        if args and origin is not Literal:
            return origin[tuple(arg if arg is Ellipsis else self._readable(arg) for arg in args)]
        special = self._special(tp, [])
        return tp if special is None else Annotated[tp, special]

    def _limited(self, tp: Any, metadata: Iterable[Any]) -> Any:
        limits = list(_flat(metadata))
        special = self._special(tp, limits)
        if special is not None:
            return Annotated[tp, special]
        known = tuple(limit for limit in limits if isinstance(limit, _KNOWN))
        readable = self._readable(tp)
        return Annotated[(readable, *known)] if known else readable

    def _special(self, tp: Any, limits: list[Any]) -> st.SearchStrategy[Any] | None:
        """The strategy for a type that is better not left to Hypothesis; None for the others."""
        if tp is str:
            return _text(limits, self._keys)
        if tp in (datetime, AwareDatetime):
            return st.datetimes(timezones=st.just(UTC))  # as ctx.now: a naive one cannot even be compared with it
        if tp is Decimal or (tp is int and _limit(limits, "multiple_of")):
            return _decimal(limits) if tp is Decimal else _multiple(limits)
        if not isinstance(tp, type):
            return None
        if issubclass(tp, BaseModel):
            return self.model(tp)
        return self._dataclass(tp) if dataclasses.is_dataclass(tp) else None


def _flat(metadata: Iterable[Any]) -> Iterator[Any]:
    for item in metadata:
        if isinstance(item, FieldInfo):
            yield from _flat(item.metadata)
        elif isinstance(item, annotated_types.GroupedMetadata):
            yield from _flat(item)
        else:
            yield item


def _text(limits: list[Any], keys: tuple[str, ...]) -> st.SearchStrategy[str]:
    least = max((limit.min_length for limit in limits if isinstance(limit, annotated_types.MinLen)), default=0)
    most = min((limit.max_length for limit in limits if isinstance(limit, annotated_types.MaxLen)), default=None)
    pattern = _limit(limits, "pattern")
    if pattern is None:
        text = st.text(min_size=least, max_size=most)
    else:
        text = st.from_regex(pattern).filter(lambda t: least <= len(t) and (most is None or len(t) <= most))
    fitting = [
        key
        for key in keys
        if least <= len(key) and (most is None or len(key) <= most) and (pattern is None or re.search(pattern, key))
    ]
    return st.sampled_from(fitting) | text if fitting else text


def _decimal(limits: list[Any]) -> st.SearchStrategy[Decimal]:
    """Finite ones, as pydantic demands, with no more digits than the type allows."""
    places, digits = _limit(limits, "decimal_places"), _limit(limits, "max_digits")
    lowest, highest = _bounds(limits)
    if digits is not None:
        bound = 10 ** (digits - (places or 0)) - 1
        lowest = -bound if lowest is None else max(lowest, -bound)
        highest = bound if highest is None else min(highest, bound)
    return st.decimals(
        lowest, highest, places=0 if places is None and digits else places, allow_nan=False, allow_infinity=False
    )


def _multiple(limits: list[Any]) -> st.SearchStrategy[int]:
    multiple: int = _limit(limits, "multiple_of")
    lowest, highest = _bounds(limits)
    least, most = None if lowest is None else -(-lowest // multiple), None if highest is None else highest // multiple
    return st.integers(least, most).map(lambda times: times * multiple)


def _bounds(limits: list[Any]) -> tuple[Any, Any]:
    """The closest limits on both sides; whether a number may lie on them is left to the model."""
    lower = [limit for limit in (_limit(limits, "ge"), _limit(limits, "gt")) if limit is not None]
    upper = [limit for limit in (_limit(limits, "le"), _limit(limits, "lt")) if limit is not None]
    return max(lower, default=None), min(upper, default=None)


def _limit(limits: list[Any], name: str) -> Any:
    return next((getattr(limit, name) for limit in limits if getattr(limit, name, None) is not None), None)
