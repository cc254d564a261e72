"""A look into a partition's read models: the answer as JSON, and what it means to who asked."""

from __future__ import annotations

import json

from pydantic import TypeAdapter

from engram.errors import Misuse
from engram.image.found import Found, Subtotal
from engram.image.image import Image
from engram.image.row_index import TalliedRows
from engram.shard.requests import Look

_ROWS = TypeAdapter(list[tuple[int | float, str, str]])
_SUBTOTAL = TypeAdapter(tuple[int, tuple[int, int], int | float | None, int | float | None])


def look_into(image: Image, look: Look) -> bytes:
    """A list of rows, or the subtotal of a group. Raises as `ReadModels.index` does."""
    if image.read_models is None:
        raise Misuse(f"There is no read model {look.model!r}: the app has none.")
    index = image.read_models.index(look.model)
    if isinstance(index, TalliedRows):
        return json.dumps(index.find(look.place)).encode()
    after = None if look.after is None else Found(*look.after)
    return json.dumps(index.find(look.place, after, look.limit)).encode()


def rows_in(body: bytes) -> list[Found]:
    return [Found(*row) for row in _ROWS.validate_json(body)]


def subtotal_in(body: bytes) -> Subtotal:
    return Subtotal(*_SUBTOTAL.validate_json(body))
