"""The key of the entity that a command or query is for."""

from __future__ import annotations

from typing import Any

from engram.errors import Misuse
from engram.model.app import App, entity_of
from engram.model.command import Command
from engram.model.context import check_key
from engram.model.entity import EVERYWHERE, Shared
from engram.model.query import Query


def shared_in(app: App) -> set[type[Any]]:
    """The commands and queries that are for a shared object, and not for one entity."""
    asked: list[type[Any]] = [*app.commands.values(), *app.queries.values()]
    return {cls for cls in asked if issubclass(entity_of(cls), Shared)}


def key_for(key: str, asked: Command[Any, Any] | Query[Any, Any], shared: set[type[Any]]) -> str:
    """The key, if it can be one; what is shared has one of its own. Raises `Misuse`."""
    if type(asked) not in shared:
        check_key(key)
        return key
    if key not in ("", EVERYWHERE):
        raise Misuse(f"{asked.__engram__.name} is not for one entity: leave the key out, or write {EVERYWHERE!r}.")
    return EVERYWHERE
