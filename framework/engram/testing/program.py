"""What was done to an app, as a program that does it again."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from pydantic import BaseModel

from engram.model.app import App

_PLAIN = (str, int, bool, bytes, type(None))


class Program:
    """Lines of Python over a scenario `s`, with the imports that they need."""

    def __init__(self, app: App, **options: Any) -> None:
        self._imports: set[tuple[str, str]] = {("engram.testing", "scenario")}
        self._lines: list[str] = []
        self._missing: list[str] = []
        self._apps = {"app": app}
        told = "".join(f", {name}={self.text(value)}" for name, value in options.items())
        self.add(f"s = scenario(app{told})")

    def add(self, line: str) -> None:
        self._lines.append(line)

    def __str__(self) -> str:
        for name, app in self._apps.items():  # now, because to look for them takes a while
            self._import_app(app, name)
        imports = [f"from {module} import {name}" for module, name in sorted(self._imports)]
        missing = [f"# {told}" for told in self._missing]
        return "\n".join([*imports, *missing, "", *self._lines])

    def app(self, app: App, name: str) -> str:
        """The text of an app, which is imported under a name of its own."""
        self._apps[name] = app
        return name

    def function(self, function: Callable[..., Any]) -> str:
        return self._imported(function.__module__, function.__qualname__)

    def text(self, value: Any) -> str:  # noqa: C901, PLR0911 - one return for each kind of value
        """A value as Python writes it. One that cannot be written so becomes its JSON, if it is a model."""
        match value:
            case Enum():
                return f"{self._named(type(value))}.{value.name}"
            case float():
                return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
            case datetime():
                zone = "" if value.tzinfo is None else f", tzinfo={self._zone(value)}"
                parts = [value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond]
                return f"{self._named(datetime)}({', '.join(map(str, parts))}{zone})"
            case timedelta():
                return f"{self._named(timedelta)}({value.days}, {value.seconds}, {value.microseconds})"
            case date() | time() | Decimal() | UUID():
                made = f"({str(value)!r})" if isinstance(value, Decimal | UUID) else f".fromisoformat({str(value)!r})"
                return f"{self._named(type(value))}{made}"
            case list():
                return f"[{', '.join(map(self.text, value))}]"
            case dict():
                return f"{{{', '.join(f'{self.text(k)}: {self.text(v)}' for k, v in value.items())}}}"
            case BaseModel():
                return self._model(value)
            case tuple() if hasattr(value, "_fields"):
                return f"{self._named(type(value))}({', '.join(map(self.text, value))})"
            case tuple():
                return f"({', '.join(map(self.text, value))}{',' if len(value) == 1 else ''})"
            case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
                fields = [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
                return f"{self._named(type(value))}({', '.join(f'{n}={self.text(v)}' for n, v in fields)})"
        if type(value) in _PLAIN:
            return repr(value)
        self._missing.append(f"{value!r} cannot be written as Python: put something like it in its place.")
        return repr(value)

    def _model(self, value: BaseModel) -> str:
        name = self._named(type(value))
        aliased = [field for field in type(value).model_fields.values() if field.alias is not None]
        if aliased or any(
            type(getattr(value, field)).__module__ == "pydantic_core" for field in value.model_fields_set
        ):
            return f"{name}.model_validate_json({value.model_dump_json()!r})"
        given = [field for field in type(value).model_fields if field in value.model_fields_set]
        return f"{name}({', '.join(f'{field}={self.text(getattr(value, field))}' for field in given)})"

    def _zone(self, value: datetime) -> str:
        offset = value.utcoffset() or timedelta()
        if not offset:
            self._imports.add(("datetime", "UTC"))
            return "UTC"
        self._imports.add(("datetime", "timezone"))
        return f"timezone({self.text(offset)})"

    def _named(self, cls: type[Any]) -> str:
        return self._imported(cls.__module__, cls.__qualname__)

    def _imported(self, module: str, name: str) -> str:
        if "<locals>" in name or module == "__main__":
            told = f"{name} of {module} cannot be imported: define it here."
            if told not in self._missing:
                self._missing.append(told)
            return name.rpartition(".")[2]
        self._imports.add((module, name.partition(".")[0]))
        return name

    def _import_app(self, app: App, name: str) -> None:
        found = _home_of(app)
        told = f"{app!r} is in no variable of a module: define it here, as {name}."
        if found is not None:
            module, variable = found
            self._imports.add((module, variable if variable == name else f"{variable} as {name}"))
        elif told not in self._missing:
            self._missing.append(told)


def _home_of(app: App) -> tuple[str, str] | None:
    """The module and variable that hold an app: the shortest module's, which is where others import it from."""
    homes = [
        (name, variable)
        for name, module in list(sys.modules.items())
        if name != "__main__" and isinstance(getattr(module, "__dict__", None), dict)
        for variable, value in list(vars(module).items())
        if value is app and not variable.startswith("_")
    ]
    own = {cls.__module__.partition(".")[0] for cls in app.commands.values()}
    return min(homes, key=lambda home: (home[0].partition(".")[0] not in own, len(home[0]), home), default=None)
