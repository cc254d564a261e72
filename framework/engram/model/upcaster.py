"""Upcasters: pure steps that bring old state, commands and events to the next version."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Upcaster:
    """One step of a type's history, from `from_version` to the next."""

    of: type[Any]
    from_version: int
    step: Callable[[Json], Json]


def upcaster(of: type[Any], *, from_version: int) -> Callable[[Callable[[Json], Json]], Upcaster]:
    """Declares the step from `from_version` to `from_version + 1` of an entity, command, query or event.

    The function gets the old JSON object and returns the new one. It must be pure: it runs on every read of
    an old record or snapshot, any number of times.
    """

    def declare(step: Callable[[Json], Json]) -> Upcaster:
        return Upcaster(of, from_version, step)

    return declare
