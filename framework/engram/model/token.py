"""Tokens: how much of an app's log somebody has seen, as a text that travels in headers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Self

from engram.errors import Foreign, Misuse
from engram.model.position import Position
from engram.model.sealed import MARK, seal, shortened, unseal

_CONTENT = re.compile(r"([a-z][a-z0-9_]*)\.([0-9]{1,5})~([0-9:_]*)")
_PLACE = re.compile(r"([0-9]{1,5}):([0-9]{1,15})")


class Token:
    """For each partition the offset of a record that is to be included; unchangeable.

    Written `social.4~0:12_2:7~ff80ae71`: the app, its number of partitions, the partitions of which something is known,
    and a checksum. Safe in URLs, headers and cookies. Tokens merge, `a | b`, in any order and as often as one likes, to
    one that covers both.

    Offsets are enough: the commands of a record are handled together, as reads see it.
    """

    __slots__ = ("app", "offsets", "partitions")

    def __init__(self, app: str, partitions: int, offsets: Mapping[int, int] | None = None) -> None:
        self.app = app
        self.partitions = partitions
        self.offsets: Mapping[int, int] = dict(offsets or {})

    @classmethod
    def of(cls, app: str, partitions: int, positions: Iterable[Position]) -> Self:
        """The token that covers all these positions."""
        return cls(app, partitions, _greatest((p.partition, p.offset) for p in positions))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises `Foreign` for a text that is not, to the letter, what a token was written as."""
        content = _CONTENT.fullmatch(unseal(text) or "")
        if content is None:
            raise Foreign(f"{shortened(text)} is not a token, or is not whole: give it back as it was given.")
        places = [_PLACE.fullmatch(place) for place in content[3].split("_") if place]
        offsets = {int(place[1]): int(place[2]) for place in places if place is not None}
        token = cls(content[1], int(content[2]), offsets)
        if str(token) != text or any(partition >= token.partitions for partition in offsets):
            raise Foreign(f"{shortened(text)} is not a token, though its checksum is right: nobody gave it out.")
        return token

    def check(self, app: str, partitions: int) -> None:
        """Raises `Foreign` when it is of another app, or of one with another number of partitions."""
        if (self.app, self.partitions) != (app, partitions):
            raise Foreign(
                f"The token is of app {self.app} with {self.partitions} partitions; this is {app} with {partitions}: "
                "ask without it."
            )

    def offset(self, partition: int) -> int | None:
        """The offset of the record that an answer from this partition is to include; None if any will do."""
        return self.offsets.get(partition)

    def __or__(self, other: Token) -> Token:
        """The token that covers both. Raises `Misuse` for tokens of different apps: they have nothing in common."""
        if (self.app, self.partitions) != (other.app, other.partitions):
            raise Misuse(
                f"A token of {self.app} with {self.partitions} partitions does not merge with one of {other.app} with "
                f"{other.partitions}."
            )
        return Token(self.app, self.partitions, _greatest([*self.offsets.items(), *other.offsets.items()]))

    def __str__(self) -> str:
        places = "_".join(f"{partition}:{offset}" for partition, offset in sorted(self.offsets.items()))
        return seal(f"{self.app}.{self.partitions}{MARK}{places}")

    def __repr__(self) -> str:
        return f"Token.parse({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Token) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))


def _greatest(pairs: Iterable[tuple[int, int]]) -> dict[int, int]:
    greatest: dict[int, int] = {}
    for partition, offset in pairs:
        greatest[partition] = max(offset, greatest.get(partition, offset))
    return greatest
