"""Versions as records, snapshots, timers and events carry them.

Of most types it is the number that the type declares. Of one that holds named value types which have versions of their
own, it is a text: `"2 money=3 post=2"` is version 2, with money as of version 3 and post as of version 2 in it. Value
types at version 1 are left out. So whatever says a version says all of them, and an equal one needs no upcasting.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

Version = int | str

_TEXT = re.compile(r"[0-9]{1,9}( [a-z][a-z0-9_]{0,63}=[0-9]{1,9})*")


def join_version(own: int, nested: Mapping[str, int]) -> Version:
    """The version of something that declares `own` and holds value types of these versions."""
    told = [f"{name}={version}" for name, version in sorted(nested.items()) if version != 1]
    return " ".join([str(own), *told]) if told else own


def split_version(version: Version) -> tuple[int, dict[str, int]]:
    """What `join_version` was given, without versions of 1. Raises `ValueError` for anything else."""
    if isinstance(version, int):
        return version, {}
    if not _TEXT.fullmatch(version):
        raise ValueError(f"{version!r} is not a version: write a number, or as in '2 post=3'")
    own, *nested = version.split(" ")
    pairs = [each.partition("=") for each in nested]
    return int(own), {name: int(number) for name, _, number in pairs}


def read_version(text: str) -> Version:
    """A version that was written as text: a number is one again. Raises `ValueError` for what is none."""
    own, nested = split_version(text)
    return join_version(own, nested)
