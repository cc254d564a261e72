"""The rows of read models as plain Python has them: every row of every entity, sorted or added up."""

from __future__ import annotations

import json
from collections import defaultdict
from fractions import Fraction
from typing import Any

from engram.codec.codec import Codec
from engram.model.read_model import Ranking, Search, Tally, source_of
from engram.testing.simulator.model import Model


class PlainRows:
    """What there is of a read model in a partition."""

    def __init__(self, model: Model, codec: Codec, name: str) -> None:
        self._cls = codec.app.read_models[name]
        self._placed: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        for key, entity in model.entities(source_of(self._cls)):
            for row in self._cls().rows(entity):
                place, *rest = codec.rows[name].placed(row)
                self._placed[place].append((key, *rest))

    @property
    def places(self) -> set[str]:
        return {*self._placed}

    def at(self, place: str) -> Any:
        """As the JSON of an answer has it: rows in their order, or the totals of a group."""
        rows = self._placed.get(place, [])
        found = (
            _total([row[1] for row in rows]) if issubclass(self._cls, Tally) else sorted(set(map(self._found, rows)))
        )
        return json.loads(json.dumps(found))

    def _found(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        if issubclass(self._cls, Ranking):
            key, score, text = row
            return -score, key, text
        key, text = row
        return 0, key, text


def is_checked(codec: Codec, name: str) -> bool:
    """Not searches: what is relevant is for an engine to say."""
    return not issubclass(codec.app.read_models[name], Search)


def _total(numbers: list[Any]) -> tuple[Any, ...]:
    whole = sum((Fraction(number) for number in numbers), Fraction())
    return len(numbers), whole.as_integer_ratio(), min(numbers, default=None), max(numbers, default=None)
