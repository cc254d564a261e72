"""What a simulation has found."""

from __future__ import annotations


class Wrong(AssertionError):
    """Something does not hold."""


def same(found: object, expected: object, what: str) -> None:
    """Raises `Wrong` with both unless they are equal."""
    if found != expected:
        raise Wrong(f"{what}: it is {found!r}, and should be {expected!r}")
