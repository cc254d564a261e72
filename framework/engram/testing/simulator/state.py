"""The state of a whole application at rest, for invariants to look at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from engram.model.entity import Entity

E = TypeVar("E", bound=Entity)


class State:
    """Everything there is, of all partitions. Only to be read."""

    def __init__(self, entities: Mapping[tuple[type[Entity], str], Entity]) -> None:
        self._entities = entities

    def all(self, of: type[E]) -> dict[str, E]:
        """All entities of a type, by key."""
        return {key: entity for (cls, key), entity in self._entities.items() if cls is of and isinstance(entity, of)}

    def find(self, of: type[E], key: str) -> E | None:
        """An entity, if it is there."""
        found = self._entities.get((of, key))
        return found if isinstance(found, of) else None
