"""What the handlers of an app mention that they must not touch, found in their code before anything runs."""

from __future__ import annotations

import builtins
import dataclasses
import dis
import os
import random
import secrets
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple, get_type_hints

from pydantic import BaseModel

from engram.errors import Misuse
from engram.model.app import App, entity_of
from engram.model.command import Command
from engram.shard.determinism.order import assigned_variables, lines_in_order
from engram.shard.determinism.outside import (
    CHANCE,
    ENVIRONMENT,
    NETWORK,
    NEW_IDS,
    ORDER,
    THREADS,
    VARIABLES,
    Outside,
    Touch,
    name_of,
    of_function,
)
from engram.shard.determinism.places import AppCode

# What of Python's own is written in Python, and is not to be called.
_FUNCTIONS: dict[Any, Outside] = {
    os.getenv: ENVIRONMENT,
    uuid.uuid1: NEW_IDS,
    uuid.uuid4: NEW_IDS,
    random.SystemRandom: CHANCE,
    threading.Thread: THREADS,
    socket.socket: NETWORK,
    socket.create_connection: NETWORK,
    subprocess.run: THREADS,
    subprocess.Popen: THREADS,
    subprocess.check_output: THREADS,
    secrets.token_bytes: CHANCE,
    secrets.token_hex: CHANCE,
    secrets.token_urlsafe: CHANCE,
}
_LOADS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_DEREF", "IMPORT_NAME"}
_NOTHING_HAPPENS = {"CACHE", "PRECALL", "PUSH_NULL", "RESUME", "COPY_FREE_VARS", "EXTENDED_ARG", "NOP"}


class _Instance(NamedTuple):
    """Something of a class; which one is not known."""

    of: type[Any]


def check_handlers(app: App) -> None:
    """Raises `Misuse` with everything that handlers mention and must not touch."""
    touches = [f"{cls.__name__} {touch}." for cls, touch in mentioned(app)]
    if touches:
        raise Misuse(
            f"{len(touches)} handlers of {app.name} are not deterministic, so a replay would come to something else. "
            + " ".join(touches)
        )


def mentioned(app: App) -> list[tuple[type[Command[Any, Any]], Touch]]:
    """What each command's handler mentions, with all of the app's own functions that it can be seen to call."""
    code = AppCode(cls.__module__ for cls in app.commands.values())
    found = []
    for cls in app.commands.values():
        inspection = _Inspection(code)
        inspection.function(cls.handle, [_Instance(cls), _Instance(entity_of(cls))])
        found += [(cls, touch) for touch in inspection.touches]
    return found


class _Inspection:
    def __init__(self, app_code: AppCode) -> None:
        self.touches: list[Touch] = []
        self._app_code = app_code
        self._seen: set[Any] = set()

    def function(self, function: FunctionType | Any, arguments: list[Any]) -> None:
        code: CodeType = function.__code__
        if code in self._seen:
            return
        self._seen.add(code)
        for line, text in lines_in_order(code, function.__globals__):
            self._note(ORDER, text, code, line)
        local = {name: _Instance(cls) for name, cls in _annotated(function).items()}
        local |= zip(code.co_varnames, arguments, strict=False)
        free = zip(code.co_freevars, function.__closure__ or (), strict=False)
        local |= {name: cell.cell_contents for name, cell in free if _is_filled(cell)}
        self._code(code, function.__globals__, local)

    def _code(self, code: CodeType, names: dict[str, Any], local: dict[str, Any]) -> None:
        for line, name in assigned_variables(code):
            self._note(VARIABLES, name, code, line)
        known: Any = None
        module: Any = None
        line = code.co_firstlineno
        for step in dis.get_instructions(code):
            line = step.positions.lineno or line if step.positions else line
            if step.opname in _NOTHING_HAPPENS:
                continue
            if step.opname in ("STORE_FAST", "STORE_DEREF"):
                if isinstance(step.argval, str):
                    local[step.argval] = known
                continue
            known, module = self._value(step, known, module, names, local)
            self._look_at(known, code, line)
            if isinstance(step.argval, CodeType):
                self._code(step.argval, names, dict(local))

    def _value(
        self, step: dis.Instruction, known: Any, module: Any, names: dict[str, Any], local: dict[str, Any]
    ) -> tuple[Any, Any]:
        """What an instruction puts on the stack, if that can be told, and the module that is being imported from."""
        name = step.argval
        if step.opname in _LOADS and isinstance(name, str):
            if step.opname == "IMPORT_NAME":
                imported = sys.modules.get(name)
                return imported, imported
            if name in local:
                return local[name], module
            return names.get(name, getattr(builtins, name, None)), module
        if step.opname == "IMPORT_FROM":
            return getattr(module, name, None), module
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD") and known is not None:
            return _attribute(known, name), module
        return None, module

    def _look_at(self, known: Any, code: CodeType, line: int) -> None:
        if known is None or isinstance(known, _Instance | ModuleType):
            return
        outside, name = _outside(known)
        if outside is not None:
            self._note(outside, name, code, line)
        elif isinstance(known, FunctionType):
            if self._app_code.has(known.__code__.co_filename, known.__module__):
                self.function(known, [])
        elif isinstance(known, type) and self._app_code.has("", known.__module__) and known not in self._seen:
            self._seen.add(known)
            for factory in _factories(known):
                self._look_at(factory, code, line)

    def _note(self, outside: Outside, function: str, code: CodeType, line: int) -> None:
        touch = Touch(outside, function, self._app_code.line(code, line))
        if all(touch.where != other.where for other in self.touches):
            self.touches.append(touch)


def _attribute(known: Any, name: str) -> Any:
    if isinstance(known, _Instance):
        found = getattr(known.of, name, None)
        return found.fget if isinstance(found, property) else found if isinstance(found, FunctionType) else None
    return getattr(known, name, None) if isinstance(known, ModuleType | type) or known is os.environ else None


def _outside(known: Any) -> tuple[Outside | None, str]:
    if known is os.environ:
        return ENVIRONMENT, "os.environ"
    if isinstance(known, random.Random):
        return CHANCE, "a generator of its module"
    try:
        listed = _FUNCTIONS.get(known)
    except TypeError:  # not to be hashed: data
        return None, ""
    if listed is not None:
        return listed, f"{known.__module__}.{known.__qualname__}"
    outside = of_function(known, by_the_app=True) if callable(known) else None
    return outside, "" if outside is None else name_of(known)


def _factories(cls: type[Any]) -> Iterator[Any]:
    """What makes the values of fields that are not given."""
    if issubclass(cls, BaseModel):
        yield from (field.default_factory for field in cls.model_fields.values() if field.default_factory is not None)
    elif dataclasses.is_dataclass(cls):
        made = (field.default_factory for field in dataclasses.fields(cls))
        yield from (factory for factory in made if factory is not dataclasses.MISSING)


def _annotated(function: Any) -> dict[str, type[Any]]:
    """The parameters of which a class is said."""
    try:
        hints = get_type_hints(function)
    except (NameError, TypeError):  # a name that is there for type checkers only
        return {}
    return {name: hint for name, hint in hints.items() if isinstance(hint, type)}


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
