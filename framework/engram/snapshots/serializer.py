"""How a snapshot's parts become bytes: an interface whose implementations have names and versions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from engram.errors import Corrupt
from engram.image.contents import EntityColumns, Memory, columns_of, rows_of
from engram.snapshots.manifest import PartEntry
from engram.snapshots.parquet import ParquetJson, table_of

if TYPE_CHECKING:
    import pyarrow as pa


class Serializer(Protocol):
    """Writes parts and reads them. Its `form` is its name and version: what was written under a form is read for ever,
    so bytes that older code could not read are a new form, and a new class. Methods that read raise `Corrupt`."""

    form: str

    def encode(self, entities: Sequence[EntityColumns]) -> bytes:
        """A part with these entities."""

    def merge(
        self, changes: Iterable[Iterable[bytes]], base: Iterable[bytes], limit: int
    ) -> Iterator[tuple[bytes, int]]:
        """Parts with the newest row of every entity, each of about `limit` bytes, and how many are in each.

        `changes` has the parts of each change, the newest first, and `base` those that they go back to. An entity is
        once in each of these. Parts are asked for one after the other, and may be larger than memory together.
        """

    def table(self, parts: Sequence[bytes]) -> pa.Table:
        """The newest row of every entity, as columns of text: entity, key, version, state, rows."""

    def decode(self, part: bytes, newer: Mapping[str, Collection[str]]) -> list[EntityColumns]:
        """The entities of a part, by type and version, without those keys of a type that are said to be newer."""

    def encode_memory(self, memory: Memory) -> bytes:
        """The part with all that is no entity."""

    def decode_memory(self, part: bytes) -> Memory:
        """What `encode_memory` was given."""


class Serializers:
    """Those that this Engram knows: the first one writes, each reads what it has written."""

    def __init__(self, *known: Serializer) -> None:
        self.writing = known[0]
        self._known: Mapping[str, Serializer] = {serializer.form: serializer for serializer in known}

    def of(self, part: PartEntry) -> Serializer:
        """The one that wrote the part. Raises `Corrupt` for a form that is not known here."""
        form = part.form or ParquetJson.form
        if form not in self._known:
            names = ", ".join(self._known)
            raise Corrupt(f"its part {part.name} has the form {form}, and this Engram reads {names}: run a newer one")
        return self._known[form]

    def today(self, part: PartEntry, data: bytes) -> bytes:
        """A part in the form of today, whatever form it was written in."""
        of = self.of(part)
        return data if of is self.writing else self.writing.encode(of.decode(data, {}))

    def table(self, parts: Sequence[tuple[PartEntry, bytes]]) -> pa.Table:
        """The newest row of every entity, of parts in any form."""
        forms = {self.of(part).form for part, _ in parts}
        if len(forms) == 1:
            return self.of(parts[0][0]).table([data for _, data in parts])
        return table_of(columns_of(rows_of(self._decoded(parts))))

    def _decoded(self, parts: Sequence[tuple[PartEntry, bytes]]) -> list[EntityColumns]:
        return [columns for part, data in parts for columns in self.of(part).decode(data, {})]


SERIALIZERS = Serializers(ParquetJson())
