"""Texts that are given out and come back: with a checksum, so that an accident on the way is noticed.

Against accidents and not against forgers: what is sealed may be wrong, it must not be harmful.
"""

from __future__ import annotations

import zlib

# Between a text and its checksum. Safe in URLs, headers and cookies.
MARK = "~"


def seal(text: str) -> str:
    """The text and its checksum. A change of one character, or of any few next to each other, is noticed."""
    return f"{text}{MARK}{_check(text)}"


def unseal(sealed: str) -> str | None:
    """The text that was sealed; None if this is not, to the letter, what `seal` has made."""
    text, _, check = sealed.rpartition(MARK)
    return text if check == _check(text) else None


def shortened(text: str) -> str:
    """A text from outside as an error message quotes it."""
    return repr(text if len(text) <= 60 else f"{text[:60]}…")


def _check(text: str) -> str:
    number = zlib.crc32(text.encode(errors="replace"))
    return f"{number:08x}"
