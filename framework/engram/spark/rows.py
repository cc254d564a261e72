"""Rows of a table as commands: checked as a gateway checks them, and encoded."""

from __future__ import annotations

from typing import NamedTuple

from engram.codec.codec import Codec
from engram.errors import Corrupt, Misuse
from engram.log.base import RECORD_BYTES
from engram.log.partitioner import partition_of
from engram.model.keys import Keys
from engram.model.version import Version, read_version

# The partition of rows that go into none.
BAD = -1


class Checked(NamedTuple):
    """`partition` is `BAD`, with the reason in `problem`, for what no gateway would have taken."""

    partition: int
    name: str
    version: str
    key: str
    body: bytes
    problem: str


class RowChecker:
    """Turns rows into commands of one app, for a log of so many partitions."""

    def __init__(self, codec: Codec, partitions: int) -> None:
        self._codec = codec
        self._keys = Keys(codec.app)
        self._partitions = partitions
        self._versions = {name: codec.version_of(cls) for name, cls in codec.app.commands.items()}

    def check(
        self, id_: str | None, command: str | None, key: str | None, body: str | None, version: str | None = None
    ) -> Checked:
        """What becomes of a row; None is what it does not have. Old versions of commands are brought up."""
        try:
            return self._check(id_, command, key, body, version)
        except (Corrupt, Misuse, ValueError) as problem:
            text = str(problem)
            return Checked(BAD, "", "", "", b"", text[:1].upper() + text[1:])

    def _check(
        self, id_: str | None, name: str | None, key: str | None, body: str | None, version: str | None
    ) -> Checked:
        if not id_:
            raise Misuse("it has no id: without one it could be added twice")
        if not name:
            raise Misuse("it has no command: write its name there")
        own = self._version_of(name)
        written = own if version is None else read_version(version)
        # Decoded from what was read, and encoded anew: what goes into the log is what a gateway would have put there.
        command = self._codec.decode_command(name, written, (body or "{}").encode())
        key = self._keys.checked(key or "", type(command))
        encoded = self._codec.encode_command(command)
        if len(encoded) + len(key) > RECORD_BYTES:
            raise Misuse(f"it has {len(encoded):,} bytes, and a record of the log holds {RECORD_BYTES:,}")
        return Checked(partition_of(key, self._partitions), name, str(own), key, encoded, "")

    def _version_of(self, name: str) -> Version:
        try:
            return self._versions[name]
        except KeyError:
            known = ", ".join(sorted(self._versions))
            raise Misuse(f"app {self._codec.app.name} has no command named {name!r} (it has: {known})") from None
