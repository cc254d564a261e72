"""A freeze: a copy of an image at one moment, taken while commands go on.

Nothing is copied at the start but references. Entities are encoded in slices between commands; one that is
about to change before its turn is encoded just before. So the copy is of one moment, and no pause is long.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Protocol

from engram.codec.codec import strictly
from engram.image.contents import Copied, EntityColumns, EntityRow, Memory, rows_of
from engram.image.home import Home, Walk

# A walk through all entities is taken when more than one in so many is waiting: looking at one costs little.
_FEW = 8


class Freeze:
    """Entities of an image as of the moment this was made; they are complete once `advance` returns False.

    `columns` has those that are encoded and not handed over: if all together would take too much room, whoever takes
    the copy has them handed over now and then. `expected` is how many there are in all.

    `whole`: all of them. Otherwise only those that were dirty, which then are not any more: what changes from here
    on is dirty for the next one.
    """

    def __init__(self, copied: Copied, homes: Iterable[Home], *, whole: bool) -> None:
        self._copied = copied
        self.whole = whole
        self._problem: Exception | None = None
        self._parts: dict[Home, _Part] = {home: _All(home) if whole else _Changed(home) for home in homes}
        self.expected = sum(part.expected for part in self._parts.values())

    @cached_property
    def memory(self) -> Memory:
        """The rest of the image. Made when it is first asked for, on any thread: that takes a while."""
        return self._copied.memory()

    @property
    def columns(self) -> list[EntityColumns]:
        return [part.taken.columns for part in self._parts.values()]

    @property
    def size(self) -> int:
        """The bytes of what is encoded and not handed over."""
        return sum(part.taken.size for part in self._parts.values())

    def hand_over(self) -> list[EntityColumns]:
        """What is encoded by now, each entity once in the life of a freeze."""
        return [part.taken.hand_over() for part in self._parts.values()]

    @property
    def rows(self) -> list[EntityRow]:
        """What `columns` has, one by one."""
        return rows_of(self.columns)

    def before_changes(self, entities: Iterable[tuple[Home, str]]) -> None:
        """Must be called before entities change, with their homes and keys. Never raises: the commands that come are
        not to blame for a state that cannot be encoded."""
        waiting: dict[_Part, dict[str, None]] = {}
        for home, key in entities:
            part = self._parts[home]
            if part.waits(key):
                waiting.setdefault(part, {})[key] = None
        if waiting:
            try:
                with strictly():
                    for part, keys in waiting.items():
                        part.take(list(keys))
            except Exception as problem:  # noqa: BLE001 - raised again by the next `advance`
                self._problem = problem

    def advance(self, limit: int) -> bool:
        """Encodes up to `limit` entities; False when none is waiting. Raises what an entity's encoding raised."""
        if self._problem is not None:
            raise self._problem
        with strictly():
            for part in self._parts.values():
                limit -= part.advance(limit)
        return any(part.left for part in self._parts.values())

    def end(self) -> None:
        """From here on entities may change without its knowing."""
        for home in self._parts:
            home.leaving = None

    def give_back(self) -> None:
        """It came to nothing: what was dirty is dirty again."""
        for home, part in self._parts.items():
            for key in part.dirty:
                home.mark(key)


class _Part(Protocol):
    """What a freeze has of one type, and what is waiting."""

    taken: _Taken
    expected: int

    dirty: list[str]  # what was so when it began

    @property
    def left(self) -> bool:
        """Whether some may be waiting."""

    def waits(self, key: str) -> bool:
        """Whether this one is; called for each that is about to change or to be made."""

    def take(self, keys: list[str]) -> None:
        """Encodes some that are waiting, each once; within `strictly()`."""

    def advance(self, limit: int) -> int:
        """Looks at up to `limit` entities, and encodes those that are waiting; how many it looked at. Within
        `strictly()`."""


class _Taken:
    """The entities of a part that are encoded and not handed over."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._begin()

    def _begin(self) -> None:
        self._keys: list[str] = []
        self._states: list[bytes] = []
        self._rows: list[bytes | None] = []
        self.columns = EntityColumns(self._home.name, self._home.version, self._keys, self._states, self._rows)
        self.size = 0

    def encode(self, keys: list[str]) -> None:
        """Takes these, or raises and takes none."""
        entities, encode = self._home.entities, self._home.encode
        states = [encode(entities[key]) if key in entities else self._home.encoded(key) for key in keys]
        self._states += states
        self._keys += keys
        self.size += sum(map(len, states))
        if self._home.encode_rows is not None:
            rows = list(map(self._home.encode_rows, keys))
            self._rows += rows
            self.size += sum(map(len, rows))

    def hand_over(self) -> EntityColumns:
        columns = self.columns
        self._begin()
        return columns


class _Changed:
    """Those that were dirty: the mark of one that is waiting is that of the round which has ended. They are walked in
    the order of memory if they are many."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self.taken = _Taken(home)
        self._round = home.round
        self.dirty = home.next_round()
        self.expected = self._waiting = len(self.dirty)
        # First through all that are in memory, if at all, and then through those that were dirty.
        self._made = 0 if len(self.dirty) * _FEW >= len(home.made) else len(home.made)
        self._listed = 0

    @property
    def left(self) -> bool:
        return self._waiting > 0

    def waits(self, key: str) -> bool:
        return self._home.mark_of(key) == self._round

    def take(self, keys: list[str]) -> None:
        self.taken.encode(keys)
        self._waiting -= len(keys)
        for key in keys:
            self._home.clear_mark(key)

    def advance(self, limit: int) -> int:
        if not self._waiting:
            return 0
        made = self._home.made
        if self._made < len(made):
            looked = made[self._made : self._made + limit]
            self._made += len(looked)
            entities, of = self._home.entities, self._round
            keys = [key for key in looked if entities[key]._round == of]
        else:
            looked = self.dirty[self._listed : self._listed + limit]
            self._listed += len(looked)
            keys = [key for key in looked if self.waits(key)]
        self.take(keys)
        return len(looked)


class _All:
    """All that were there, whatever their number: nothing is copied when it begins.

    First those in memory are walked, then the cold ones. One that leaves those meanwhile is encoded as it does; one
    that is made meanwhile is not part of it.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self.taken = _Taken(home)
        self.dirty = home.next_round()
        home.cold_marks.clear()
        self.expected = home.count()
        self._not: set[str] = set()  # those not cold that are encoded, or were made meanwhile
        self._walk = 0
        self._cold: Walk | None = None  # once their turn has come
        self._cold_left = bool(home.cold)
        home.leaving = self._leave

    @property
    def left(self) -> bool:
        return self._walk < len(self._home.made) or self._cold_left

    def waits(self, key: str) -> bool:
        if key in self._not:
            return False
        if key in self._home.entities:
            return True
        if key in self._home.cold:
            return self._cold is None or not self._cold.passed(key)
        self._not.add(key)
        return False

    def take(self, keys: list[str]) -> None:
        self.taken.encode(keys)
        self._not.update(keys)

    def advance(self, limit: int) -> int:
        made = self._home.made
        if self._walk < len(made):
            looked = made[self._walk : self._walk + limit]
            self._walk += len(looked)
            self.take([key for key in looked if key not in self._not])
            return len(looked)
        if limit <= 0 or not self._cold_left:
            return 0
        if self._cold is None:
            self._cold = self._home.walk_cold()
        looked = self._cold.take(limit)
        self._cold_left = len(looked) == limit
        self.taken.encode([key for key in looked if key not in self._not and key in self._home.cold])
        return len(looked)

    def _leave(self, key: str) -> None:
        """One of the cold ones is brought to memory: from here on it is one that was encoded."""
        if self.waits(key):
            self.take([key])
        self._not.add(key)
