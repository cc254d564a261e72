"""The read models of a partition, kept up to date with its entities.

They follow from the entities, so they are no part of the digest, and nothing that goes wrong in them changes what a
command does.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json

from engram.codec.codec import Codec
from engram.codec.rows import Row, RowCodec
from engram.errors import Misuse, Quarantined, Unavailable
from engram.image.columns import NONE, Columns, columns_of, difference, rows_of
from engram.image.guard import assigned_fields, changed_fields, guard_for, used_fields
from engram.image.home import Home
from engram.image.outcome import Outcome, Verdict
from engram.image.row_index import Index, SearchedRows, SortedRows, TextIndex, index_for
from engram.model.app import entity_of
from engram.model.command import Command
from engram.model.entity import Entity
from engram.model.read_model import ReadModel, Search, source_of

Work = Iterable[tuple[int, Command[Any, Any], str]]
NewTextIndex = Callable[[], TextIndex]


class ReadModelState(NamedTuple):
    """How a read model is doing in a partition: how many of all entities it has been through, or what broke it."""

    name: str
    done: int
    total: int
    problem: str = ""


class Moved:
    """Where in a read model rows have come or gone: at these places, or it could be anywhere."""

    __slots__ = ("anywhere", "places")

    def __init__(self) -> None:
        self.places: set[str] = set()
        self.anywhere = False

    def __bool__(self) -> bool:
        return self.anywhere or bool(self.places)

    def clear(self) -> None:
        self.places.clear()
        self.anywhere = False


class ReadModels:
    """All read models of an image. Used between records, on the shard's thread."""

    def __init__(self, codec: Codec, homes: Mapping[type[Entity], Home], new_text_index: NewTextIndex) -> None:
        self._models: dict[str, _Kept] = {}
        self._groups: dict[type[Entity], _Group] = {}
        self._deferred = False
        for name, cls in codec.app.read_models.items():
            home = homes[source_of(cls)]
            self._models[name] = kept = _Kept(codec.rows[name], home, new_text_index)
            self._groups.setdefault(home.cls, _Group(home)).models.append(kept)
        for group in self._groups.values():
            group.home.encode_rows = group.encoded
            group.home.born = []
        # For each command the models whose rows it can change, where there are any.
        concerned = {
            cls: (self._groups[entity_of(cls)].touched, self._groups[entity_of(cls)].concerned(cls))
            for cls in codec.app.commands.values()
            if entity_of(cls) in self._groups
        }
        self._by_command = {cls: (touched, models) for cls, (touched, models) in concerned.items() if models}
        self._by_command |= {slim: self._by_command[cls] for cls, slim in codec.slim.items() if cls in self._by_command}

    def touch(self, work: Work, outcomes: Iterable[Outcome]) -> None:
        """Notes which entities have been changed by commands: `refresh` looks at them."""
        by_command, reply = self._by_command, Verdict.REPLY
        for (_, command, key), outcome in zip(work, outcomes, strict=True):
            concerned = by_command.get(type(command))
            if concerned is not None and outcome.verdict is reply:
                touched, models = concerned
                touched[key] = touched.get(key, 0) | models

    def refresh(self, offset: int) -> None:
        """Brings the rows of all touched entities up to date, at the end of the record at `offset`. Never raises."""
        for group in self._groups.values():
            if group.home.born:  # whatever its first command was: before it there were no rows at all
                group.touched.update(dict.fromkeys(group.home.born, group.all))
                group.home.born.clear()
            if group.touched and not self._deferred:
                group.refresh(offset)

    def defer(self) -> None:
        """Touched entities are only noted, until `catch_up`. During a replay nobody looks, and one that was touched a
        hundred times has its rows made once."""
        self._deferred = True

    def catch_up(self, limit: int, offset: int) -> bool:
        """Brings up to `limit` of those up to date; False when none is left, and none is deferred any more."""
        for group in self._groups.values():
            while group.touched and limit:
                limit -= 1
                group.catch_up(offset)
        self._deferred = any(group.touched for group in self._groups.values())
        return self._deferred

    # Loading and building

    def take(self, cls: type[Entity], keys: Sequence[str], rows: Sequence[bytes | None] = ()) -> None:
        """During a load of entities: takes in the rows that were kept with some of them, in place of any before. Where
        there are none, or rows of other code, or what cannot be read, the entity waits for its turn. Never raises."""
        group = self._groups.get(cls)
        if group is not None:
            group.take(keys, rows)

    def end_load(self) -> None:
        """After it: from here on rows are found."""
        for group in self._groups.values():
            group.end_load()

    @property
    def building(self) -> bool:
        return any(group.waiting for group in self._groups.values())

    def advance(self, limit: int, offset: int) -> bool:
        """Goes through up to `limit` entities that are waiting; False when none is."""
        for group in self._groups.values():
            while group.waiting and limit:
                limit -= 1
                group.build(group.waiting.popitem()[0], offset)
        return self.building

    def states(self) -> list[ReadModelState]:
        return [model.state() for model in self._models.values()]

    # Watching

    def watch(self, name: str) -> Moved:
        """Notes from now on where rows of a read model come and go; whoever reads it clears it. It costs something, so
        `unwatch`."""
        moved = Moved()
        if name in self._models:
            self._models[name].moved = moved
        return moved

    def unwatch(self, name: str) -> None:
        if name in self._models:
            self._models[name].moved = None

    # Reading

    def index(self, name: str) -> Index:
        """Where the rows of a read model are, all of them.

        Raises `Unavailable` while it is being built, `Quarantined` when it is broken, and `Misuse` for one that the
        app does not have.
        """
        model = self._models.get(name)
        if model is None:
            raise Misuse(f"There is no read model {name!r}: the app has {', '.join(sorted(self._models)) or 'none'}.")
        return model.readable()


class _Group:
    """The read models of one entity type."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.models: list[_Kept] = []
        self.touched: dict[str, int] = {}  # with a bit for each model whose rows can have changed
        self.waiting: dict[str, None] = {}
        self._concerned: dict[int, list[_Kept]] = {}  # by these bits

    def encoded(self, key: str) -> bytes:
        """The rows that read models have of an entity, by their marks, as JSON. Never raises."""
        found = ((model.mark, model.encoded(key)) for model in self.models)
        return b"{%s}" % b",".join(b'"%s":%s' % (mark.encode(), rows) for mark, rows in found if rows is not None)

    def take(self, keys: Sequence[str], rows: Sequence[bytes | None]) -> None:
        for key, data in zip(keys, rows or repeat(None), strict=False):
            found = _by_mark(data)
            known = [model.take(key, found.get(model.mark)) for model in self.models]
            self.waiting.pop(key, None)
            if not all(known):
                self.waiting[key] = None

    def end_load(self) -> None:
        loaded = [model.end_load() for model in self.models]
        if not all(loaded):
            self.waiting = dict.fromkeys(self.home.all_keys())

    @property
    def all(self) -> int:
        return (1 << len(self.models)) - 1

    def concerned(self, command: type[Command[Any, Any]]) -> int:
        """The models whose rows a command can change, a bit for each: all but those that look at other fields."""
        changed = changed_fields(command.handle, self.home.cls)
        return sum(1 << bit for bit, model in enumerate(self.models) if model.looks_at(changed))

    def refresh(self, offset: int) -> None:
        entities, waiting, concerned = self.home.entities, self.waiting, self._concerned
        for key, bits in self.touched.items():
            if waiting and key in waiting:
                del waiting[key]  # this is its turn
                models: list[_Kept] | None = self.models
            else:
                models = concerned.get(bits)
            if models is None:
                models = concerned[bits] = [model for bit, model in enumerate(self.models) if bits >> bit & 1]
            entity = entities[key]
            for model in models:
                model.refresh(key, entity, offset)
        self.touched.clear()

    def catch_up(self, offset: int) -> None:
        """The rows of one that was touched; it may be cold by now."""
        key, bits = self.touched.popitem()
        if key in self.waiting:
            del self.waiting[key]
            bits = self.all
        self._refresh_one(key, [model for bit, model in enumerate(self.models) if bits >> bit & 1], offset)

    def build(self, key: str, offset: int) -> None:
        if self._refresh_one(key, [model for model in self.models if key in model.waiting], offset):
            self.home.mark(key)  # so that the next snapshot has its rows

    def _refresh_one(self, key: str, models: list[_Kept], offset: int) -> bool:
        """False if it cannot be decoded."""
        try:
            entity = self.home.peek(key)
        except Exception as problem:  # noqa: BLE001 - a state that cannot be decoded is for its next command to tell
            for model in models:
                model.break_down(key, offset, problem)
            return False
        for model in models:
            model.refresh(key, entity, offset)
        return True


class _Kept:
    """One read model: the rows of every entity, and the index of all rows."""

    def __init__(self, codec: RowCodec, home: Home, new_text_index: NewTextIndex) -> None:
        self._codec = codec
        self._new_index = partial(_new_index, codec.cls, new_text_index)
        self._home = home
        self._compute = codec.cls().rows
        self._guard = guard_for(home.cls, assigned_fields(codec.cls.rows, home.cls))
        self._watched = self._guard.whole or bool(self._guard.names)
        self._undo = home.undo
        self._width = codec.width
        self._fields = used_fields(codec.cls.rows, home.cls)
        self.mark = codec.mark
        self._rows: dict[str, Columns | bytes] = {}  # of entities that are as in a snapshot, encoded
        self._loading: dict[str, list[Row]] = {}  # those that came with the entities of a snapshot, until all are there
        self._index: Index = self._new_index()
        self._problem = self._told = ""
        self._total = 0
        self.waiting: set[str] = set()
        self.moved: Moved | None = None  # while somebody wants to know

    def looks_at(self, fields: frozenset[str] | None) -> bool:
        """Whether the rows can be others once these fields have changed; None stands for any."""
        # A key is for ever, and what is stored in two fields is stored twice: a field changes by its name alone.
        return self._fields is None or fields is None or bool(self._fields & fields - {"key"})

    def take(self, key: str, values: Any) -> bool:
        """The rows of an entity as they were encoded; whether they can be used. Otherwise it waits."""
        self._rows.pop(key, None)
        self._loading.pop(key, None)
        self.waiting.discard(key)
        try:
            rows = None if values is None else self._codec.placed_in(values)
        except (LookupError, TypeError, ValueError):  # not what this code has written
            rows = None
        if rows is None:
            self.waiting.add(key)
        elif rows:
            self._rows[key] = to_json(values)
            self._loading[key] = rows
        return rows is not None

    def end_load(self) -> bool:
        """Indexes what was taken. Rows that cannot be are made anew, all of them: then it is False."""
        loading, self._loading = self._loading, {}
        self._total = self._home.count()
        try:
            self._index.load((key, row) for key, rows in loading.items() for row in rows)
        except Exception:  # noqa: BLE001 - rows follow from entities, so what is wrong with them may not stop a start
            self._rows = {}
            self._index = self._new_index()
            self.waiting = set(self._home.all_keys())
            return False
        return True

    def encoded(self, key: str) -> bytes | None:
        """All rows of an entity; None if they are not known, or would not be known again."""
        if self._problem or not self.mark or key in self.waiting:
            return None
        rows = self._rows.get(key, NONE)
        try:
            return rows if isinstance(rows, bytes) else self._codec.encode(rows_of(rows))
        except Exception as problem:  # noqa: BLE001 - a snapshot goes on without them
            self.break_down(key, None, problem)
            return None

    def refresh(self, key: str, entity: Entity, offset: int) -> None:
        """Compares the rows that the entity has now with those it had, and indexes the difference."""
        if self._problem:
            return
        if self.waiting:
            self.waiting.discard(key)
        try:
            rows = self._guarded(key, entity) if self._watched else list(self._compute(entity))
            if self._undo:
                raise self._meddled()
            now = columns_of(rows, self._width)
            old = self._rows.get(key, NONE)
            if now != old:
                self._replace(key, old, now)
        except Exception as problem:  # noqa: BLE001 - whatever it is, the command stands and the shard goes on
            self._undo.roll_back()
            self.break_down(key, offset, problem)

    def break_down(self, key: str, offset: int | None, problem: Exception) -> None:
        """From here on it only says what was wrong."""
        where = f"{self._home.name} {key!r}, {'for a snapshot' if offset is None else f'at record {offset}'}"
        trace = "".join(traceback.format_exception(problem)).rstrip()
        self._told = (
            f"Read model {self._codec.name} is broken since it came to {where}: {type(problem).__name__}: {problem}"
        )
        self._problem = f"{self._told}\n{trace}"
        self._rows = {}
        self._index = SortedRows()
        self.waiting = set()
        if self.moved is not None:
            self.moved.anywhere = True

    def state(self) -> ReadModelState:
        return ReadModelState(self._codec.name, self._total - len(self.waiting), self._total, self._problem)

    def readable(self) -> Index:
        if self._problem:
            raise Quarantined(f"{self._told}. The status of the app has the traceback.")
        if self.waiting:
            done = f"{self._total - len(self.waiting):,} of {self._total:,} entities"
            raise Unavailable(f"Read model {self._codec.name} is being built: {done} are done.")
        return self._index

    def _guarded(self, key: str, entity: Entity) -> list[Row]:
        """The rows, by a method of which it is not certain that it assigns no fields."""
        guard = self._guard
        before = guard.captured(entity)
        try:
            return list(self._compute(entity))
        finally:
            if not guard.unchanged(entity, key, before):
                self._undo.roll_back()
                guard.restore(entity, key, before)
                raise self._meddled()

    def _meddled(self) -> Misuse:
        return Misuse(f"{self._codec.cls.__name__}.rows changed its entity; rows are only read from it.")

    def _replace(self, key: str, old: Columns | bytes, now: Columns) -> None:
        if isinstance(old, bytes):
            kept = self._replace_encoded(key, old, now)
        else:
            codec = self._codec
            kept, removed, added = difference(old, now, alike=codec.alike)
            self._move(key, codec.all_placed(removed), codec.all_placed(added))
        if kept:
            self._rows[key] = kept
        else:
            del self._rows[key]

    def _replace_encoded(self, key: str, old: bytes, now: Columns) -> Columns:
        """For the first time since a snapshot: rows are compared as JSON, which is what the index has."""
        encoded = self._codec.encode(rows_of(now))
        if encoded != old:
            before, after = (columns_of(self._codec.decode_placed(each), self._width) for each in (old, encoded))
            _, removed, added = difference(before, after)
            self._move(key, removed, added)
        return now

    def _move(self, key: str, removed: Iterable[Row], added: Iterable[Row]) -> None:
        if self.moved is not None:
            removed, added = list(removed), list(added)
            if isinstance(self._index, SearchedRows):  # how relevant a row is depends on all others
                self.moved.anywhere = True
            else:
                self.moved.places.update(row[0] for row in (*removed, *added))
        self._index.remove(key, removed)
        self._index.add(key, added)


def _by_mark(data: bytes | None) -> dict[str, Any]:
    try:
        found = from_json(data) if data else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _new_index(cls: type[ReadModel], new_text_index: NewTextIndex) -> Index:
    return index_for(cls, new_text_index() if issubclass(cls, Search) else None)
