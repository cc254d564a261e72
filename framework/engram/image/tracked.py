"""Lists and dicts that note how to take back what is done to them.

Reading is the built-in types' own, at their speed; only what changes a container is overridden. So a handler
that raises is undone in time that follows its changes, however large the entity is, and nothing is copied
while all goes well. See docs/decisions/0004-undo.md.

Each undo log has types of its own, which know it: an element more in every list would cost memory, and a look at it
time, at each change.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any, ClassVar, NamedTuple, Self, SupportsIndex

from engram.model.entity import Part

_MISSING: Any = object()
# A dict up to this size is copied before a key is deleted from its middle; a larger one keeps its order in
# a list of its own, so that the cost of a deletion does not follow the size.
_SMALL = 64

# Looked up once: these are on the hot path.
_append, _pop = list.append, list.pop
_get, _set = dict.get, dict.__setitem__

# An undo log as seen from below: a list of (function, arguments...) with a list `unsettled`.
_Undo = Any


def _put_back(values: list[Any], index: int, value: Any) -> None:
    list.insert(values, index if index >= 0 else index + len(values) + 1, value)


class TrackedList(list[Any]):
    """A list of an entity or part. Equal to, and encoded as, a plain list; made by `track`.

    Called like a class it gives a plain list, as `dataclasses.asdict` does: what belongs nowhere is not tracked.
    """

    __slots__ = ()
    _undo: ClassVar[_Undo] = None
    _nested: ClassVar[bool] = False

    def __new__(cls, *values: Any) -> Any:
        return list(*values)

    @classmethod
    def track(cls, values: Iterable[Any]) -> Self:
        tracked = list.__new__(cls)
        list.__init__(tracked, values)
        return tracked

    def append(self, value: Any) -> None:
        _append(self, value)
        self._undo.append(self)  # the most common change, so it is noted without a tuple: pop the last
        if self._nested:
            self._stored(value)

    def extend(self, values: Iterable[Any]) -> None:
        size = len(self)
        added = list(values)  # first, because an iterator may raise halfway
        list.extend(self, added)
        self._undo.append((list.__delitem__, self, slice(size, None)))
        if self._nested:
            for value in added:
                self._stored(value)

    def insert(self, index: SupportsIndex, value: Any) -> None:
        at, _, _ = slice(index, None).indices(len(self))
        list.insert(self, at, value)
        self._undo.append((list.__delitem__, self, at))
        if self._nested:
            self._stored(value)

    def pop(self, index: SupportsIndex = -1) -> Any:
        at = index.__index__()
        at = at + len(self) if at < 0 else at
        value = list.pop(self, index)
        self._undo.append((list.insert, self, at, value))
        return value

    def remove(self, value: Any) -> None:
        self.pop(self.index(value))

    def clear(self) -> None:
        self._note_all()
        list.clear(self)

    def sort(self, **how: Any) -> None:
        self._note_all()
        list.sort(self, **how)

    def reverse(self) -> None:
        list.reverse(self)
        self._undo.append((list.reverse, self))

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(index, slice):
            added = list(value)
            self._note_all()
            list.__setitem__(self, index, added)
            if self._nested:
                for stored in added:
                    self._stored(stored)
            return
        old = self[index]
        list.__setitem__(self, index, value)
        self._undo.append((list.__setitem__, self, index, old))
        if self._nested:
            self._stored(value)

    def __delitem__(self, index: Any) -> None:
        if type(index) is int:
            self._undo.append((_put_back, self, index, _pop(self, index)))
            return
        if not isinstance(index, slice):
            self.pop(index)
            return
        start, stop, step = index.indices(len(self))
        if step == 1:
            removed = self[start:stop]
            if removed:
                list.__delitem__(self, index)
                self._undo.append((list.__setitem__, self, slice(start, start), removed))
        else:
            self._note_all()
            list.__delitem__(self, index)

    def __iadd__(self, values: Iterable[Any]) -> Self:  # type: ignore[misc]  # list takes fewer
        self.extend(values)
        return self

    def __imul__(self, times: SupportsIndex) -> Self:
        self[:] = list(self) * times
        return self

    def __copy__(self) -> list[Any]:
        return list(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return [deepcopy(value, memo) for value in self]

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)

    def _note_all(self) -> None:
        self._undo.append((list.__setitem__, self, slice(None), list(self)))

    def _stored(self, value: Any) -> None:
        if isinstance(value, (list, dict, Part)):
            self._undo.unsettled.append((self, None, value))


class TrackedDict(dict[Any, Any]):
    """A dict of an entity or part. Equal to, and encoded as, a plain dict; undo restores its order too. Made by
    `track`; called like a class it gives a plain dict.

    `_order` is None until a key is deleted from the middle of a large dict. From then on it lists the keys
    in the order of insertion, deleted ones included: a key's last occurrence is its place.
    """

    __slots__ = ("_order",)
    _undo: ClassVar[_Undo] = None
    _nested: ClassVar[bool] = False
    _order: list[Any] | None

    def __new__(cls, *values: Any, **items: Any) -> Any:
        return dict(*values, **items)

    @classmethod
    def track(cls, values: dict[Any, Any]) -> Self:
        tracked = dict.__new__(cls)
        dict.__init__(tracked, values)
        tracked._order = None
        return tracked

    def __setitem__(self, key: Any, value: Any) -> None:
        old = dict.get(self, key, _MISSING)
        dict.__setitem__(self, key, value)
        if old is _MISSING:
            if self._order is not None:
                self._follow(key)
            self._undo.append((TrackedDict._take_out, self, key))
        else:
            self._undo.append((dict.__setitem__, self, key, old))
        if self._nested and isinstance(value, (list, dict, Part)):
            self._undo.unsettled.append((self, key, value))

    def __delitem__(self, key: Any) -> None:
        value = self[key]
        last = next(reversed(self))
        if last == key:  # put back as it was: 1 and True are equal, and so are noon in two time zones
            self._undo.append((dict.__setitem__, self, last, value))
        elif len(self) <= _SMALL:
            self._note_all()
        else:
            self._note_order()
            self._undo.append((TrackedDict._put_back, self, key, value))
        dict.__delitem__(self, key)

    def pop(self, key: Any, default: Any = _MISSING) -> Any:
        if key not in self:
            if default is _MISSING:
                raise KeyError(key)
            return default
        value = self[key]
        del self[key]
        return value

    def popitem(self) -> tuple[Any, Any]:
        key, value = dict.popitem(self)
        self._undo.append((dict.__setitem__, self, key, value))
        return key, value

    def setdefault(self, key: Any, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *others: Any, **items: Any) -> None:
        for key, value in dict(*others, **items).items():
            self[key] = value

    def clear(self) -> None:
        self._note_all()
        dict.clear(self)

    def __ior__(self, other: Any) -> Self:  # type: ignore[misc]  # dict has overloads
        self.update(other)
        return self

    def __copy__(self) -> dict[Any, Any]:
        return dict(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[Any, Any]:
        return {key: deepcopy(value, memo) for key, value in self.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)

    def _note_all(self) -> None:
        self._undo.append((TrackedDict._replace, self, dict(self), self._order))
        self._order = None

    def _note_order(self) -> None:
        if self._order is None or len(self._order) > 2 * len(self):
            self._set_order(list(self))

    def _follow(self, key: Any) -> None:
        assert self._order is not None
        if len(self._order) > 2 * len(self):
            self._set_order(None)  # mostly deleted keys: the next deletion from the middle makes a new one
        else:
            self._order.append(key)

    def _set_order(self, order: list[Any] | None) -> None:
        # Earlier changes of the same command rely on what the list holds now.
        self._undo.append((setattr, self, "_order", self._order))
        self._order = order

    # The ways back

    def _take_out(self, key: Any) -> None:
        dict.__delitem__(self, key)
        if self._order is not None:
            self._order.pop()

    def _put_back(self, key: Any, value: Any) -> None:
        order = self._order
        assert order is not None
        place = {k: i for i, k in enumerate(order)}
        dict.__setitem__(self, order[place[key]], value)
        self._replace({k: self[k] for k in sorted(self, key=place.__getitem__)}, order)

    def _replace(self, values: dict[Any, Any], order: list[Any] | None) -> None:
        dict.clear(self)
        dict.update(self, values)
        self._order = order


class TrackedTypes(NamedTuple):
    """The types of one undo log. `flat` ones hold nothing that can change, `nested` ones may."""

    flat_list: type[TrackedList]
    nested_list: type[TrackedList]
    flat_dict: type[TrackedDict]
    nested_dict: type[TrackedDict]


def tracked_types(undo: _Undo) -> TrackedTypes:
    note = undo.append

    class FlatList(TrackedList):
        """Its commonest changes know the log without looking: they are on the hot path."""

        __slots__ = ()
        _undo = undo

        def append(self, value: Any) -> None:
            _append(self, value)
            note(self)

        def __delitem__(self, index: Any) -> None:
            if type(index) is int:
                note((_put_back, self, index, _pop(self, index)))
            else:
                TrackedList.__delitem__(self, index)

    class NestedList(TrackedList):
        __slots__ = ()
        _undo = undo
        _nested = True

    class FlatDict(TrackedDict):
        """As above."""

        __slots__ = ()
        _undo = undo

        def __setitem__(self, key: Any, value: Any) -> None:
            old = _get(self, key, _MISSING)
            if old is _MISSING:
                TrackedDict.__setitem__(self, key, value)
            else:
                _set(self, key, value)
                note((_set, self, key, old))

    class NestedDict(TrackedDict):
        __slots__ = ()
        _undo = undo
        _nested = True

    return TrackedTypes(FlatList, NestedList, FlatDict, NestedDict)
