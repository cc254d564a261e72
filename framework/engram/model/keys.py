"""Keys as they come from outside: which entity a command or query is for."""

from __future__ import annotations

from typing import Any

from engram.errors import Misuse
from engram.model.app import App, entity_of
from engram.model.context import check_key
from engram.model.entity import EVERYWHERE, Shared


class Keys:
    """Checks the keys of an app's commands and queries."""

    def __init__(self, app: App) -> None:
        asked: list[type[Any]] = [*app.commands.values(), *app.queries.values()]
        self._shared = {cls for cls in asked if issubclass(entity_of(cls), Shared)}

    def checked(self, key: str, asked: type[Any]) -> str:
        """The key of the entity that this is for; what is shared has one of its own. Raises `Misuse` for one that can
        name no entity."""
        if asked not in self._shared:
            check_key(key)
            return key
        if key not in ("", EVERYWHERE):
            raise Misuse(f"{asked.__engram__.name} is not for one entity: leave the key out, or write {EVERYWHERE!r}.")
        return EVERYWHERE
