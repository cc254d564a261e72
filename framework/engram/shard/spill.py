"""Cold entities on disk, so that the state may be larger than memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from engram.errors import Misuse
from engram.image.home import Older
from engram.model.version import Version
from engram.shard.places import Places

# What has come since the last write goes to the disk together.
_BUFFER_BYTES = 1024 * 1024
# A file is written anew when more than half of it is of no use, and it is worth the trouble.
_WORTH_BYTES = 16 * 1024 * 1024
# Read at once of an entity whose size is not known yet: one read is enough for most.
_READ_BYTES = 512
_WALK_BYTES = 256 * 1024
# The sizes of key and state, and which version it is: today's, or one of those in a list.
_HEAD = Struct("<IIH")
_TODAY = 0


class Spill(MutableMapping[str, bytes | Older]):
    """Encoded entities by key, in a file that nobody else sees. In memory are only their places,
    about twenty bytes for each.

    The file has no name and is gone with its process, whatever ends that: it is no truth, only room. Single-threaded.
    A disk that is full raises `OSError`, and what was there before is still there. Others may go while keys are gone
    through; none may come.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = self._open()
        self._places = Places(self._is_at)
        self._older: list[Version] = []
        self._buffer = bytearray()
        self._written = 0
        self._used = 0
        self._worth = _WORTH_BYTES
        self._latest: _Kept | None = None  # what is looked up is often taken out next

    def __getitem__(self, key: str) -> bytes | Older:
        kept = self._find(key)
        if kept is None:
            raise KeyError(key)
        return kept.state if kept.version == _TODAY else Older(self._older[kept.version - 1], kept.state)

    def __setitem__(self, key: str, item: bytes | Older) -> None:
        version, state = (self._number(item.version), item.state) if isinstance(item, Older) else (_TODAY, item)
        name = key.encode()
        size = _HEAD.size + len(name) + len(state)
        self._buffer += _HEAD.pack(len(name), len(state), version) + name + state
        if len(self._buffer) >= _BUFFER_BYTES:
            try:
                self._flush()
            except OSError:
                del self._buffer[len(self._buffer) - size :]
                raise
        before = self._places.put(key, self._written + len(self._buffer) - size)
        self._used += size if before is None else size - self._at(before).size
        self._latest = None
        if self._written > self._worth and self._written > 2 * self._used:
            self._compact()

    def __delitem__(self, key: str) -> None:
        kept = self._find(key)
        if kept is None:
            raise KeyError(key)
        self._places.remove(key, kept.place)
        self._used -= kept.size
        self._latest = None

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._find(key) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self.walk())

    def __len__(self) -> int:
        return len(self._places)

    @property
    def disk_bytes(self) -> int:
        """The size of the file."""
        return self._written

    def walk(self) -> SpillWalk:
        """Goes through the keys, in the order of the file."""
        return SpillWalk(self._places, self._read)

    def close(self) -> None:
        os.close(self._file)

    def _open(self) -> int:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            fd, path = tempfile.mkstemp(prefix="engram-spill-", dir=self._folder)
        except OSError as problem:
            raise Misuse(f"Entities cannot be spilled to {self._folder}: {problem.strerror}.") from problem
        Path(path).unlink()
        return fd

    def _find(self, key: str) -> _Kept | None:
        latest = self._latest
        if latest is not None and latest.key == key:
            return latest
        return None if self._places.find(key) is None else self._latest  # which it was when its key was compared

    def _is_at(self, key: str, place: int) -> bool:
        self._latest = found = self._at(place)
        return found.key == key

    def _at(self, place: int) -> _Kept:
        data = self._read(place, _READ_BYTES)
        of_key, of_state, version = _HEAD.unpack_from(data)
        start = _HEAD.size + of_key
        end = start + of_state
        if len(data) < end:
            data = self._read(place, end)
        if len(data) < end:
            raise OSError(f"The spilled entity at {place} has {len(data)} bytes instead of {end}.")
        return _Kept(place, data[_HEAD.size : start].decode(), version, data[start:end], end)

    def _read(self, place: int, size: int) -> bytes:
        """Up to so many bytes: an entity is whole in the file, or in the buffer."""
        if place >= self._written:
            start = place - self._written
            return bytes(self._buffer[start : start + size])
        return os.pread(self._file, size, place)

    def _flush(self) -> None:
        data = bytes(self._buffer)
        done = 0
        while done < len(data):
            done += os.pwrite(self._file, data[done:], self._written + done)
        self._written += len(self._buffer)
        self._buffer = bytearray()

    def _number(self, version: Version) -> int:
        if version not in self._older:
            self._older.append(version)
        return self._older.index(version) + 1

    def _compact(self) -> None:
        """Copies what is of use into a new file. When there is no room for that, it is tried again later."""
        new = Spill(self._folder)
        new._older = self._older
        try:
            for key in self:
                new[key] = self[key]
        except OSError:
            new.close()
            self._worth = 2 * self._written
            return
        self.close()
        self._file, self._places, self._buffer = new._file, new._places, new._buffer
        self._places.is_at = self._is_at
        self._written, self._used, self._worth, self._latest = new._written, new._used, _WORTH_BYTES, None


class SpillWalk:
    """See `engram.image.home.Walk`."""

    def __init__(self, places: Places, read: Callable[[int, int], bytes]) -> None:
        self._places = places
        self._read = read
        self._place = 0  # of the next one to be looked at
        self._chunk, self._start = b"", 0

    def __iter__(self) -> Iterator[str]:
        while keys := self.take(1000):
            yield from keys

    def take(self, limit: int) -> list[str]:
        keys: list[str] = []
        while len(keys) < limit and (found := self._next()) is not None:
            key, place = found
            if self._places.has(key, place):
                keys.append(key)
        return keys

    def passed(self, key: str) -> bool:
        place = self._places.find(key)
        return place is not None and place < self._place

    def _next(self) -> tuple[str, int] | None:
        """The next in the file, whether it is of use or not."""
        place = self._place
        if len(head := self._bytes(place, _HEAD.size)) < _HEAD.size:
            return None
        of_key, of_state, _ = _HEAD.unpack(head)
        key = self._bytes(place + _HEAD.size, of_key).decode()
        self._place = place + _HEAD.size + of_key + of_state
        return key, place

    def _bytes(self, place: int, size: int) -> bytes:
        start = place - self._start
        if start < 0 or start + size > len(self._chunk):
            self._chunk, self._start, start = self._read(place, max(size, _WALK_BYTES)), place, 0
        return self._chunk[start : start + size]


class _Kept(NamedTuple):
    place: int
    key: str
    version: int
    state: bytes
    size: int
