"""Shared objects in the hands of handlers that may only read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engram.errors import Misuse
from engram.image.home import Home
from engram.model.entity import EVERYWHERE, Entity, Shared


class Lending:
    """Gives shared objects to the running handler, and looks afterwards whether they are as they were."""

    def __init__(self, homes: Mapping[type[Entity], Home]) -> None:
        self._homes = homes
        self._lent: dict[type[Entity], tuple[Entity, Any]] = {}
        self.changing: Home | None = None  # that of the broadcast which is being handled

    def lend(self, cls: type[Any]) -> Any:
        home = self._homes.get(cls)
        if home is None or not issubclass(cls, Shared):
            raise Misuse(f"{getattr(cls, '__name__', cls)} is no shared object of the app: no Broadcast is for it.")
        if home is self.changing:
            raise Misuse(f"This command changes {cls.__name__} itself: use the first argument of its handler.")
        if cls not in self._lent:
            kept = home.find(EVERYWHERE)
            entity = home.fresh(EVERYWHERE) if kept is None else kept
            self._lent[cls] = entity, home.guard.captured(entity)
        return self._lent[cls][0]

    def take_back(self) -> list[str]:
        """What was lent is as before; returns the names of types that a handler has changed."""
        lent, self._lent = self._lent, {}
        return [
            cls.__name__
            for cls, (entity, before) in lent.items()
            if (home := self._homes[cls]).take_back(entity, EVERYWHERE, home.guard, before)
        ]

    def check(self) -> None:
        """Raises `Misuse` when something lent was changed, which is undone."""
        changed = self.take_back() if self._lent else ()
        if changed:
            raise Misuse(f"A handler changed {', '.join(changed)}, which is shared: only a Broadcast may.")
