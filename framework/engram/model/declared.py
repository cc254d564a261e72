"""What a class declares of itself for the log: its name and its schema version."""

from __future__ import annotations

import re
from dataclasses import dataclass

NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


@dataclass(frozen=True, slots=True)
class Declared:
    """The `name=` and `version=` of a class statement. Names are declared, never import paths, so that
    classes can be moved and renamed while old records stay readable."""

    name: str | None
    version: int

    def problems(self, what: str) -> list[str]:
        found = []
        if self.name is None:
            found.append(f"{what} has no name: write name=... in its class statement")
        elif not NAME.fullmatch(self.name):
            found.append(
                f"{what} is named {self.name!r}: use lower case letters, digits and _, "
                "starting with a letter, at most 64"
            )
        if self.version < 1:
            found.append(f"{what} has version {self.version}: versions start at 1")
        return found


UNDECLARED = Declared(None, 1)
