"""Frames on a plain socket: how many, their sizes, and then all of them, one message after the other."""

from __future__ import annotations

import struct

from engram.errors import Corrupt

# The tag, the header, and bodies; a response has no more of them.
_FRAMES = 8
_SIZE = struct.Struct("<I")
# The number of all bytes after it, the number of frames, and how many bytes each has.
_HEADS = [struct.Struct(f"<IB{count}I") for count in range(_FRAMES + 1)]


def join(frames: list[bytes]) -> bytes:
    """One message. Raises `struct.error` for one that is too large to be told."""
    head = _HEADS[len(frames)]
    sizes = [len(frame) for frame in frames]
    return b"".join((head.pack(head.size - 4 + sum(sizes), len(frames), *sizes), *frames))


class Unframed:
    """Takes in bytes as they come, and gives out whole messages."""

    def __init__(self, largest: int) -> None:
        self._largest = largest
        self._rest = b""

    def feed(self, data: bytes) -> list[list[bytes]]:
        """The messages that are whole now. Raises `Corrupt` for what is no message, or one that is too large: after
        that nothing on this line can be understood."""
        data = self._rest + data if self._rest else data
        found = []
        start = 0
        while len(data) - start >= 4:
            (size,) = _SIZE.unpack_from(data, start)
            if size > self._largest:
                raise Corrupt(f"a message of {size} bytes, and at most {self._largest} are allowed")
            end = start + 4 + size
            if len(data) < end:
                break
            found.append(_frames(data, start, end))
            start = end
        self._rest = data[start:]
        return found


def _frames(data: bytes, start: int, end: int) -> list[bytes]:
    if end - start < 5 or data[start + 4] > _FRAMES:
        raise Corrupt("a message that does not say its frames")
    head = _HEADS[data[start + 4]]
    if start + head.size > end:
        raise Corrupt("a message that ends before its frames")
    _, _, *sizes = head.unpack_from(data, start)
    at = start + head.size
    if at + sum(sizes) != end:
        raise Corrupt("a message whose frames do not fill it")
    frames = []
    for size in sizes:
        frames.append(data[at : at + size])
        at += size
    return frames
