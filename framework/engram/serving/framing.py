"""Frames on a plain socket: how many, their sizes, and then all of them, one message after the other."""

from __future__ import annotations

import struct

from engram.errors import Corrupt

# The tag, the header, and bodies; a response has no more of them.
_FRAMES = 8
_SIZE = struct.Struct("<I")
# The number of all bytes after it, the number of frames, and how many bytes each has.
_HEADS = [struct.Struct(f"<IB{count}I") for count in range(_FRAMES + 1)]
_THREE = _HEADS[3]


def join(frames: list[bytes]) -> bytes:
    """One message. Raises `struct.error` for one that is too large to be told."""
    if len(frames) == 3:  # a query, and an answer
        a, b, c = frames
        size, other, last = len(a), len(b), len(c)
        return _THREE.pack(_THREE.size - 4 + size + other + last, 3, size, other, last) + a + b + c
    head = _HEADS[len(frames)]
    sizes = [*map(len, frames)]
    return head.pack(head.size - 4 + sum(sizes), len(frames), *sizes) + b"".join(frames)


class Unframed:
    """Takes in bytes as they come, and gives out whole messages."""

    def __init__(self, largest: int) -> None:
        self._largest = largest
        self._rest = b""

    def feed(self, data: bytes) -> list[list[bytes]]:
        """The messages that are whole now. Raises `Corrupt` for what is no message, or one that is too large: after
        that nothing on this line can be understood."""
        if self._rest:
            data = self._rest + data
        elif _is_three(data) and len(data) <= self._largest:
            return [_frames(data, 0, len(data))]
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


def _is_three(data: bytes) -> bool:
    """Whether these bytes are one whole message of three frames, which they are almost always."""
    return len(data) >= _THREE.size and data[4] == 3 and _SIZE.unpack_from(data)[0] == len(data) - 4


def _frames(data: bytes, start: int, end: int) -> list[bytes]:
    if end - start < 5 or data[start + 4] > _FRAMES:
        raise Corrupt("a message that does not say its frames")
    if data[start + 4] == 3 and start + _THREE.size <= end:
        _, _, size, other, last = _THREE.unpack_from(data, start)
        at = start + _THREE.size
        if at + size + other + last == end:
            return [data[at : at + size], data[at + size : end - last], data[end - last : end]]
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
