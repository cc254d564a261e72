"""The rows of a read model, as JSON."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

import pydantic_core
from pydantic import TypeAdapter

from engram.codec.values import adapter_of, strict_encoder
from engram.model.app import App
from engram.model.nested import written_version
from engram.model.read_model import Ranking, ReadModel, Tally, row_of, source_of

# A key, board, group or text, perhaps a score, and the row.
Row = tuple[Any, ...]

_CONSTANTS = (str, int, float, bytes, tuple)


class RowCodec:
    """Encodes and decodes the rows of one read model. Pure.

    `mark` stands for everything that rows depend on besides the entity: rows that were written under another mark are
    of no use any more. It is empty when the source cannot be read; then no rows are.
    """

    def __init__(self, app: App, cls: type[ReadModel]) -> None:
        self.cls = cls
        self.name = cls.__engram__.name or ""
        row = row_of(cls)
        self._row = adapter_of(row)
        self._encode_row = strict_encoder(self._row)
        self._all: TypeAdapter[list[Row]] = adapter_of(_listed(cls, row))
        self._encode_all = strict_encoder(self._all)
        self._tallied = issubclass(cls, Tally)
        self.width = 3 if issubclass(cls, Ranking) else 2
        # Of numbers that are equal, 1 and 1.0, the JSON may differ; to a tally and as scores they are the same.
        self.alike = self._tallied or row is str
        self.mark = self._mark(app)

    def placed(self, row: Row) -> Row:
        """What `rows` gave, with JSON text in place of the row itself. Raises `ValueError` when that is not of the
        declared type."""
        if self._tallied:
            return row
        if len(row) == 2:
            return row[0], self._encode_row(row[1]).decode()
        return (*row[:-1], self._encode_row(row[-1]).decode())

    def all_placed(self, rows: Iterable[Row]) -> Iterable[Row]:
        return rows if self._tallied else map(self.placed, rows)

    def row(self, text: str | bytes) -> Any:
        return self._row.validate_json(text)

    def encode(self, rows: list[Row]) -> bytes:
        """All rows of an entity, with their keys, scores, groups or texts."""
        return self._encode_all(rows)

    def decode(self, data: bytes) -> list[Row]:
        return self._all.validate_json(data)

    def decode_placed(self, data: bytes) -> list[Row]:
        """The same as `placed` has them."""
        return self.placed_in(pydantic_core.from_json(data))

    def placed_in(self, values: list[Any]) -> list[Row]:
        if self._tallied:
            return [tuple(row) for row in values]
        return [(*row[:-1], pydantic_core.to_json(row[-1]).decode()) for row in values]

    def _mark(self, app: App) -> str:
        source = _source(self.cls)
        if source is None:
            return ""
        declared = self.cls.__engram__
        schema = json.dumps(self._all.json_schema(mode="serialization"), sort_keys=True)
        of = [app.version, declared.version, written_version(source_of(self.cls)), schema, source]
        return f"{self.name} {blake2b(json.dumps(of).encode(), digest_size=8).hexdigest()}"


def _source(cls: type[ReadModel]) -> list[str] | None:
    """The source of the methods of a class, and its constants. Not of the class as a whole: for that Python uses a
    parser that must not run on two threads at once."""
    members = [(name, member) for name, member in sorted(vars(cls).items()) if not name.startswith("__")]
    try:
        methods = [inspect.getsource(member) for _, member in members if inspect.isfunction(member)]
    except (OSError, TypeError):
        return None
    return [*methods, *(f"{name} = {member!r}" for name, member in members if isinstance(member, _CONSTANTS))]


def _listed(cls: type[ReadModel], row: Any) -> Any:
    number = int | float
    if issubclass(cls, Tally):
        return list[tuple[str, number]]
    return list[tuple[str, number, row]] if issubclass(cls, Ranking) else list[tuple[str, row]]
