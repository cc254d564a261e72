"""A freeze: a copy of an image at one moment, taken while commands go on.

Nothing is copied at the start but references. Entities are encoded in slices between commands; one that is
about to change before its turn is encoded just before. So the copy is of one moment, and no pause is long.
"""

from __future__ import annotations

from engram.codec.codec import Codec
from engram.image.contents import EntityRow, Memory
from engram.model.entity import Entity


class Freeze:
    """The contents of an image as of the moment this was made; `rows` is whole once `advance` returns False."""

    def __init__(self, memory: Memory, entities: dict[str, dict[str, Entity]], codec: Codec) -> None:
        self.memory = memory
        self.rows: list[EntityRow] = []
        self._codec = codec
        self._problem: Exception | None = None
        self._waiting = {name: dict(of_type) for name, of_type in entities.items()}

    def before_change(self, name: str, key: str) -> None:
        """Must be called before an entity changes that was there when the freeze began. Never raises: the command
        that comes is not to blame for a state that cannot be encoded."""
        entity = self._waiting[name].pop(key, None)
        if entity is not None:
            try:
                self._encode(name, key, entity)
            except Exception as problem:  # noqa: BLE001 - raised again by the next `advance`
                self._problem = problem

    def advance(self, limit: int) -> bool:
        """Encodes up to `limit` entities; False when none is waiting. Raises what an entity's encoding raised."""
        if self._problem is not None:
            raise self._problem
        for name, waiting in self._waiting.items():
            while waiting and limit > 0:
                key, entity = waiting.popitem()
                self._encode(name, key, entity)
                limit -= 1
        return any(self._waiting.values())

    def _encode(self, name: str, key: str, entity: Entity) -> None:
        self.rows.append(EntityRow(name, key, entity.__engram__.version, self._codec.encode_entity(entity)))
