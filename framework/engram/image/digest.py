"""The digest: one number for everything an image holds.

The sum, modulo 2**256, of a hash per row. A sum does not depend on the order of rows, can be taken in parts,
and follows a change without going over the rest. It finds differences and damage; it is not meant to
withstand somebody who may choose the rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

_MODULUS = 1 << 256


def digest_rows(rows: Iterable[tuple[bytes, ...]], start: int = 0) -> int:
    """Adds the hashes of rows, each a tuple of byte strings, to `start`."""
    total = start
    for row in rows:
        state = blake2b(digest_size=32)
        for cell in row:
            state.update(b"%d:" % len(cell))  # the length keeps ("ab", "c") apart from ("a", "bc")
            state.update(cell)
        total += int.from_bytes(state.digest(), "big")
    return total % _MODULUS


def as_text(digest: int) -> str:
    """64 hexadecimal digits."""
    return f"{digest:064x}"
