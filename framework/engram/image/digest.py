"""The digest: one number for everything an image holds.

The sum, modulo 2**256, of a hash per row. A sum does not depend on the order of rows, can be taken in parts,
and follows a change without going over the rest. It finds differences and damage; it is not meant to
withstand somebody who may choose the rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

HASH_BYTES = 32

MODULUS = 1 << 8 * HASH_BYTES


def digest_rows(rows: Iterable[tuple[bytes, ...]], start: int = 0) -> int:
    """Adds the hashes of rows, each a tuple of byte strings, to `start`."""
    # The length keeps ("ab", "c") apart from ("a", "bc").
    hashes = (hash_of(b"".join(b"%d:%s" % (len(cell), cell) for cell in row)) for row in rows)
    return (start + sum(map(_number, hashes))) % MODULUS


def hash_of(row: bytes) -> bytes:
    """Of a row whose cells stand one after the other, each with its length and a colon before it."""
    return blake2b(row, digest_size=HASH_BYTES).digest()


def as_text(digest: int) -> str:
    """64 hexadecimal digits."""
    return f"{digest:064x}"


def _number(hashed: bytes) -> int:
    return int.from_bytes(hashed, "big")
