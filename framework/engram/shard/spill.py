"""Cold entities on disk, so that the state may be larger than memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, MutableMapping
from pathlib import Path

from engram.errors import Misuse
from engram.model.version import Version

# What has come since the last write goes to the disk together.
_BUFFER_BYTES = 1024 * 1024
# A file is written anew when more than half of it is of no use, and it is worth the trouble.
_WORTH_BYTES = 16 * 1024 * 1024
_SIZE_BITS = 32
_VERSION_BITS = 16


class Spill(MutableMapping[str, tuple[Version, bytes]]):
    """Encoded entities by key, with their versions: the keys in memory, the states in a file that nobody else sees.

    The file has no name and is gone with its process, whatever ends that: it is no truth, only room. Single-threaded.
    A disk that is full raises `OSError`, and what was there before is still there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = self._open()
        self._places: dict[str, int] = {}  # offset, version's number and size in one number, which takes the least room
        self._versions: list[Version] = []
        self._buffer = bytearray()
        self._written = 0
        self._used = 0

    def __getitem__(self, key: str) -> tuple[Version, bytes]:
        offset, version, size = _unpacked(self._places[key])
        return self._versions[version], self._read(offset, size)

    def __setitem__(self, key: str, item: tuple[Version, bytes]) -> None:
        version, state = item
        self._buffer += state
        if len(self._buffer) >= _BUFFER_BYTES:
            try:
                self._flush()
            except OSError:
                del self._buffer[len(self._buffer) - len(state) :]
                raise
        self._forget(key)
        offset = self._written + len(self._buffer) - len(state)
        self._places[key] = _packed(offset, self._number(version), len(state))
        self._used += len(state)

    def __delitem__(self, key: str) -> None:
        if key not in self._places:
            raise KeyError(key)
        self._forget(key)
        del self._places[key]
        if self._written > _WORTH_BYTES and self._written > 2 * self._used:
            self._compact()

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    @property
    def disk_bytes(self) -> int:
        """The size of the file."""
        return self._written

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

    def _forget(self, key: str) -> None:
        place = self._places.get(key)
        if place is not None:
            self._used -= _unpacked(place)[2]

    def _read(self, offset: int, size: int) -> bytes:
        if offset >= self._written:
            start = offset - self._written
            return bytes(self._buffer[start : start + size])
        state = os.pread(self._file, size, offset)
        if len(state) != size:
            raise OSError(f"The spilled entity at {offset} has {len(state)} bytes instead of {size}.")
        return state

    def _flush(self) -> None:
        data = bytes(self._buffer)
        done = 0
        while done < len(data):
            done += os.pwrite(self._file, data[done:], self._written + done)
        self._written += len(self._buffer)
        self._buffer = bytearray()

    def _number(self, version: Version) -> int:
        if version not in self._versions:
            self._versions.append(version)
        return self._versions.index(version)

    def _compact(self) -> None:
        """Copies what is of use into a new file."""
        new = Spill(self._folder)
        new._versions = self._versions
        for key in self._places:
            new[key] = self[key]
        self.close()
        self._file, self._places, self._buffer = new._file, new._places, new._buffer
        self._written, self._used = new._written, new._used


def _packed(offset: int, version: int, size: int) -> int:
    return (offset << _VERSION_BITS | version) << _SIZE_BITS | size


def _unpacked(place: int) -> tuple[int, int, int]:
    rest, size = divmod(place, 1 << _SIZE_BITS)
    offset, version = divmod(rest, 1 << _VERSION_BITS)
    return offset, version, size
