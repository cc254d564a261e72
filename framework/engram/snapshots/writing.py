"""A snapshot as it is written: slice after slice, each read back before the next one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from engram.errors import Corrupt
from engram.image.contents import Memory, digest_with
from engram.snapshots.base import Contents, release
from engram.snapshots.hashes import Change, Hashes
from engram.snapshots.manifest import PartEntry
from engram.snapshots.parts import MEMORY, Parts, entities_name
from engram.snapshots.serializer import Serializers
from engram.snapshots.slices import in_slices

# A base is written anew when this many changes go on from it, or when they are as large as it is.
_MOST_STEPS = 16


class Writing:
    """The parts of one snapshot, in a folder of their own. `change` is what it does to the hashes of its base."""

    def __init__(
        self, parts: Parts, serializers: Serializers, folder: str, name: str, *, hashes: Hashes, slice_bytes: int
    ) -> None:
        self._parts = parts
        self._serializers = serializers
        self._folder = folder
        self._name = name
        self._slice_bytes = slice_bytes
        self.change: Change = hashes.change()

    def write(self, contents: Contents) -> list[PartEntry]:
        """Writes everything but the manifest; all parts that the snapshot then has. Raises `Corrupt` when what was
        written is not what is read back, or not all that the image has."""
        steps = [] if contents.base is None else contents.base.steps
        expected, changed = contents.changed, self._encoded(contents)
        whole = not steps or bool(contents.savepoint) or _is_due(steps, expected)
        if whole:
            before: list[PartEntry] = []
            entities = self._write_whole(self._merged(changed, steps) if steps else changed)
        else:
            before = [part for step in steps for part in step]
            for part in before:
                self._parts.verify(self._folder, part)
            entities = [self._write_part(number, *given) for number, given in enumerate(changed)]
        if self.change.changed != expected:
            raise Corrupt(f"it would have {self.change.changed:,} of {expected:,} changed entities")
        if self.change.count != contents.total:
            raise Corrupt(f"it would have {self.change.count:,} entities, and the image has {contents.total:,}")
        return [*before, *entities, self._write_memory(contents.memory, decoded=whole)]

    def _encoded(self, contents: Contents) -> Iterator[tuple[bytes, int]]:
        """What was given, in slices. Each is let go of before the next one is asked for."""
        for some in in_slices(contents.columns, self._slice_bytes):
            for columns in some:
                self.change.put(columns)
            data, count = self._serializers.writing.encode(some), sum(len(columns.keys) for columns in some)
            for columns in some:
                release(columns)
            yield data, count

    def _merged(
        self, changed: Iterator[tuple[bytes, int]], steps: list[list[PartEntry]]
    ) -> Iterator[tuple[bytes, int]]:
        """That, and what it leaves of the steps before it."""
        base, *changes = ((self._today(part) for part in step) for step in steps)
        own = (data for data, _ in changed)
        return self._serializers.writing.merge([own, *reversed(changes)], base, self._slice_bytes)

    def _today(self, part: PartEntry) -> bytes:
        return self._serializers.today(part, self._parts.read(self._folder, part))

    def _write_whole(self, slices: Iterable[tuple[bytes, int]]) -> list[PartEntry]:
        """All entities of the image. What is read back must have the digest that follows from what was given: so a
        merge that went wrong is found before anything is removed because of it."""
        entries = []
        found = Hashes(kept=False)
        for number, given in enumerate(slices):
            entries.append(self._write_part(number, *given, found))
        if (found.total, found.count) != (self.change.total, self.change.count):
            raise Corrupt(
                f"what was written is not what was given: {found.count:,} of {self.change.count:,} entities, or others"
            )
        return entries

    def _write_part(self, number: int, data: bytes, rows: int, found: Hashes | None = None) -> PartEntry:
        """Writes and reads back; if `found` is there, it gets what was found."""
        writing = self._serializers.writing
        name = f"{self._name}/{entities_name(number)}"
        entry = self._parts.write(self._folder, name, "entities", data, form=writing.form, rows=rows)
        read = self._parts.read_back(self._folder, entry)
        if found is not None:
            for columns in writing.decode(read, {}):
                found.add(columns)
                release(columns)
        return entry

    def _write_memory(self, memory: Memory, *, decoded: bool) -> PartEntry:
        writing = self._serializers.writing
        data = writing.encode_memory(memory)
        entry = self._parts.write(self._folder, f"{self._name}/{MEMORY}", "memory", data, form=writing.form)
        read = self._parts.read_back(self._folder, entry)
        if decoded and digest_with(0, writing.decode_memory(read)) != digest_with(0, memory):
            raise Corrupt("its memory is not as it was written")
        return entry


def _is_due(steps: list[list[PartEntry]], changed: int) -> bool:
    """Whether it is time for a new base. How large this change will be is not known yet: like rows of the base."""
    base, *changes = ([sum(part.size for part in step), sum(part.rows for part in step)] for step in steps)
    size = changed * base[0] / max(base[1], 1)
    return len(steps) >= _MOST_STEPS or sum(change[0] for change in changes) + size >= base[0]
