"""The app: the explicit list of what an application has, checked as a whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, TypeAdapter

from engram.errors import Corrupt, Misuse
from engram.model.boundary import Boundary, type_arguments
from engram.model.command import Broadcast, Command
from engram.model.declared import NAME, Declared
from engram.model.entity import Entity, Shared
from engram.model.event import Event
from engram.model.guarded import rule_problems
from engram.model.limits import Limits
from engram.model.nested import Nested, nested_problems, nested_types, nested_versions
from engram.model.query import Query
from engram.model.read_model import ReadModel, read_model_problems, row_of
from engram.model.shape import Refused, find_set, part_fields, state_shape
from engram.model.upcaster import Json, Upcaster
from engram.model.value import declared_value
from engram.model.version import Version, split_version


class App:
    """An application's registry. `App(...)` raises `Misuse` with every problem in one message.

    `version` is the version of the code: raise it when handlers change what they do, so that old records are
    never handled by new code unnoticed. Entities are those that commands and queries name. `limits` is what one
    command may bring about.
    """

    def __init__(
        self,
        name: str,
        *,
        version: int = 1,
        commands: Iterable[type[Command[Any, Any]]],
        queries: Iterable[type[Query[Any, Any]]] = (),
        events: Iterable[type[Event]] = (),
        read_models: Iterable[type[ReadModel]] = (),
        upcasters: Iterable[Upcaster] = (),
        limits: Limits | None = None,
    ) -> None:
        self.name = name
        self.version = version
        self.limits = limits or Limits()
        found: list[str] = []
        if not NAME.fullmatch(name):
            found.append(f"the app is named {name!r}: use lower case letters, digits and _, starting with a letter")
        if version < 1:
            found.append(f"the app has version {version}: versions start at 1")
        listed_commands, listed_queries, listed_events = list(commands), list(queries), list(events)
        if not listed_commands:
            found.append("the app has no commands, so nothing could ever change: list at least one")
        self.commands = _by_name("command", listed_commands, Command, found)
        self.queries = _by_name("query", listed_queries, Query, found)
        self.events = _by_name("event", listed_events, Event, found)
        entities = _entities(listed_commands, listed_queries, found)
        self.entities = _by_name("entity", entities, Entity, found)
        for entity in entities:
            found += _entity_problems(entity)
        for boundary in (*listed_commands, *listed_queries, *listed_events):
            found += _boundary_problems(boundary)
        listed_models: list[Any] = list(read_models)
        self.read_models: dict[str, type[ReadModel]] = _by_name("read model", listed_models, ReadModel, found)
        for model in listed_models:
            if isinstance(model, type) and issubclass(model, ReadModel):
                problems = read_model_problems(model, entities)
                found += problems or _adapter_problems(f"{model.__name__}: its rows", row_of(model))
        for asked in (*listed_commands, *listed_queries, *listed_models):
            found += rule_problems(asked)
        self.values = _values(self._types(), found)
        self._steps = _chains([*self._types(), *self.values.values()], list(upcasters), found)
        self._nested = Nested(self._own_steps)
        if found:
            listing = "".join(f"\n  - {problem}" for problem in dict.fromkeys(found))
            raise Misuse(f"App {name!r} cannot start; to be put right:{listing}")

    def __repr__(self) -> str:
        return f"<App {self.name} version {self.version}: {len(self.commands)} commands, {len(self.queries)} queries>"

    def upcast(self, of: type[Any], from_version: Version, old: Json) -> Json:
        """Brings the JSON of an entity, command, query, event or named value to the versions of today: first by the
        upcasters of `of`, then the named values in it by theirs. `old` may be changed.

        Raises `Corrupt` for a version that is none, or newer than this app knows, and what an upcaster raises.
        """
        own, nested = self.check_version(of, from_version)
        value = declared_value(of)
        if value is not None and value.name is not None:  # those of its own type inside of it are as old
            nested[value.name] = own
        new: Json = self._nested.bring_up(of, self._own_steps(of, own, old), nested)
        return new

    def check_version(self, of: Any, version: Version) -> tuple[int, dict[str, int]]:
        """The versions of the type and of named values in it. Raises `Corrupt` for one that is none, or newer than
        this app knows."""
        try:
            own, nested = split_version(version)
        except ValueError as problem:
            raise Corrupt(str(problem)) from None
        self._check_known(of, own, nested)
        return own, nested

    def _check_known(self, of: Any, own: int, nested: dict[str, int]) -> None:
        self._check_version(of.__name__, own, of.__engram__.version)
        for name, version in nested.items():
            known = self.values.get(name)
            if known is not None:
                self._check_version(f"{name} in {of.__name__}", version, known.__engram__.version)
            # If anything is older there, what the app does not have any more was dropped by a newer version.
            elif not self._is_behind(of, own, nested):
                raise Corrupt(
                    f"{name} in {of.__name__} is at version {version} there, but this app has no value {name}: "
                    "run the newer code"
                )

    @staticmethod
    def _check_version(what: str, there: int, known: int) -> None:
        if there > known:
            raise Corrupt(
                f"{what} is at version {there} there, but this app knows only up to {known}: run the newer code"
            )
        if there < 1:
            raise Corrupt(f"{what} is at version {there} there, but versions start at 1")

    @staticmethod
    def _is_behind(of: Any, own: int, nested: dict[str, int]) -> bool:
        today = nested_versions(of).items()
        return own < of.__engram__.version or any(nested.get(name, 1) < version for name, version in today)

    def _own_steps(self, of: type[Any], from_version: int, old: Json) -> Json:
        for step in self._steps.get(of, ())[from_version - 1 :]:
            old = step.step(old)
        return old

    def _types(self) -> list[type[Any]]:
        registries: list[dict[str, type[Any]]] = [self.commands, self.queries, self.events, self.entities]
        return [t for registry in registries for t in registry.values()]


def entity_of(cls: type[Command[Any, Any] | Query[Any, Any]]) -> type[Entity]:
    """The entity type that a command or query is for."""
    return _arguments(cls)[0]  # type: ignore[no-any-return]  # checked by App


def result_of(cls: type[Command[Any, Any] | Query[Any, Any]]) -> Any:
    """The type of a command's reply or a query's answer."""
    return _arguments(cls)[1]


def _arguments(cls: Any) -> tuple[Any, ...]:
    base = next(base for base in (Broadcast, Command, Query) if issubclass(cls, base))
    return type_arguments(cls, base) or (None, None)


def _by_name(what: str, listed: list[Any], base: type[Any], found: list[str]) -> dict[str, Any]:
    by_name: dict[str, Any] = {}
    for cls in listed:
        if not (isinstance(cls, type) and issubclass(cls, base)):
            found.append(f"{cls!r} is listed as {what} but is not a subclass of {base.__name__}")
            continue
        declared: Declared = cls.__dict__["__engram__"]
        found += declared.problems(f"{what} {cls.__name__}")
        name = declared.name
        if name is None:
            continue
        other = by_name.setdefault(name, cls)
        if other is not cls:
            found.append(f"{what} name {name!r} is used by {other.__name__} and by {cls.__name__}")
    return by_name


def _entities(commands: list[Any], queries: list[Any], found: list[str]) -> list[type[Entity]]:
    entities: dict[type[Entity], None] = {}
    for cls in (*commands, *queries):
        if not (isinstance(cls, type) and issubclass(cls, Command | Query)):
            continue
        entity = _arguments(cls)[0]
        if isinstance(entity, type) and issubclass(entity, Entity):
            entities[entity] = None
            if issubclass(cls, Command) and issubclass(cls, Broadcast) != issubclass(entity, Shared):
                found.append(
                    f"{cls.__name__} changes {entity.__name__}: a Broadcast is for a Shared object, and only that is"
                )
        else:
            base = next(base for base in (Broadcast, Command, Query) if issubclass(cls, base)).__name__
            found.append(f"{cls.__name__} does not say its types: derive it from {base}[SomeEntity, SomeResult]")
    return list(entities)


def _entity_problems(entity: type[Entity]) -> list[str]:
    what = f"entity {entity.__name__}"
    if "__dataclass_fields__" not in entity.__dict__ or "__slots__" not in entity.__dict__:
        return [f"{what} is not a slotted dataclass: put @dataclass(slots=True, kw_only=True) above it"]
    found = []
    for field in dataclasses.fields(entity):
        no_default = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if field.name != "key" and (no_default or not field.init):
            found.append(f"{what}: field {field.name} needs a default, for the first command of a new key")
    try:
        annotations = part_fields(entity)
    except Exception as problem:  # noqa: BLE001 - whatever a bad annotation raises is the author's to read
        return [*found, f"{what}: its annotations cannot be resolved: {problem}"]
    for name, annotation in annotations.items():
        try:
            state_shape(annotation)
        except Refused as why:
            found.append(f"{what}: field {name}: {why}")
        except NameError as problem:
            found.append(f"{what}: field {name}: an annotation of its type cannot be resolved: {problem}")
    return found or _fresh_problems(what, entity) or _adapter_problems(what, entity)


def _fresh_problems(what: str, entity: type[Entity]) -> list[str]:
    try:
        entity(key="new")
    except Exception as problem:  # noqa: BLE001 - a default_factory may raise anything
        return [f"{what}: a new one cannot be made: {problem!r}"]
    return []


def _boundary_problems(cls: Any) -> list[str]:
    if not (isinstance(cls, type) and issubclass(cls, Boundary)):
        return []
    found = []
    abstract = getattr(cls, "__abstractmethods__", None)
    if abstract:
        found.append(f"{cls.__name__} does not define {', '.join(sorted(abstract))}")
    types = {f"field {name}": field.annotation for name, field in cls.model_fields.items()}
    if issubclass(cls, Command | Query) and _arguments(cls) != (None, None):
        types["its result"] = result_of(cls)
    for where, tp in types.items():
        held = find_set(tp)
        if held:
            found.append(f"{cls.__name__}: {where}: {held} has no fixed order: use a list or a tuple")
        found += _adapter_problems(f"{cls.__name__}: {where}", tp)
    return found


def _values(types: list[type[Any]], found: list[str]) -> dict[str, Any]:
    """All named value types within these, by name."""
    values: dict[type[Any], None] = {}
    for cls in types:
        within = [cls, result_of(cls)] if issubclass(cls, Command | Query) else [cls]
        try:
            for tp in within:
                values |= dict.fromkeys(nested_types(tp))
            found += [f"{cls.__name__}: {problem}" for problem in nested_problems(cls)]
        except Exception:  # noqa: BLE001, S112 - an annotation that cannot be resolved, which was told already
            continue
    for value in values:
        fields = getattr(value, "__dataclass_fields__", None) or issubclass(value, BaseModel)
        if not fields:
            found.append(f"value {value.__name__} has a name, but only dataclasses and pydantic models may have one")
    return _by_name("value", list(values), object, found)


def _adapter_problems(what: str, tp: Any) -> list[str]:
    try:
        TypeAdapter(tp).json_schema(mode="serialization")
    except Exception as problem:  # noqa: BLE001 - pydantic raises several kinds, all of them meant for the author
        return [f"{what}: {tp!r} cannot be encoded: {str(problem).splitlines()[0]}"]
    return []


def _chains(types: list[type[Any]], upcasters: list[Any], found: list[str]) -> dict[type[Any], list[Upcaster]]:
    chains: dict[type[Any], dict[int, Upcaster]] = {}
    for up in upcasters:
        if not isinstance(up, Upcaster):
            found.append(f"{up!r} is listed as an upcaster but is not made by @upcaster(...)")
            continue
        name = getattr(up.of, "__name__", repr(up.of))
        if up.of not in types:
            found.append(f"the upcaster {up.step.__name__} is for {name}, which this app does not have")
        elif up.from_version in chains.setdefault(up.of, {}):
            found.append(f"{name} has two upcasters from version {up.from_version}")
        elif not 1 <= up.from_version < up.of.__engram__.version:
            found.append(
                f"the upcaster {up.step.__name__} starts from version {up.from_version} of {name}, "
                f"which is at version {up.of.__engram__.version}"
            )
        else:
            chains[up.of][up.from_version] = up
    for cls in types:
        missing = [v for v in range(1, cls.__engram__.version) if v not in chains.get(cls, {})]
        if missing:
            steps = ", ".join(f"{v} to {v + 1}" for v in missing)
            found.append(f"{cls.__name__} is at version {cls.__engram__.version} but has no upcaster from {steps}")
    return {cls: [steps[v] for v in sorted(steps)] for cls, steps in chains.items()}
