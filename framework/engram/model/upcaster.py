"""Upcasters: pure steps that bring old state, commands, events and values to the next version."""

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
    """Declares the step from `from_version` to `from_version + 1` of an entity, command, query, event or named value.

    The function gets the old JSON object and returns the new one; it may change the old one. It must be pure: it runs
    on every read of an old record or snapshot, any number of times.

    Named values in the object are as old as the record: they are brought up afterwards, by their own upcasters. So
    move them or drop them, but do not look into them; and put in new ones with `at_version`.
    """

    def declare(step: Callable[[Json], Json]) -> Upcaster:
        return Upcaster(of, from_version, step)

    return declare


class AtVersion(Json):
    """The fields of a named value, of a version that they themselves say."""

    version: int


def at_version(version: int, fields: Json) -> Json:
    """A named value that an upcaster puts in, as of `version`: `old["price"] = at_version(2, {"amount": 0})`.

    Without it, the value would be taken for one that the record had all along.
    """
    made = AtVersion(fields)
    made.version = version
    return made
