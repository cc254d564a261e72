"""Cursors: how far somebody has read an app's events, as a text to come back with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple, Self

from engram.errors import Misuse
from engram.log.base import Log
from engram.model.effects import OutEvent
from engram.model.sealed import seal, shortened, unseal

START = "start"
END = "end"
# Before the first event of a record, whatever that is: timers have indices below zero.
_BEFORE_ALL = -(10**9)
_WHOLE = re.compile(r"([a-z][a-z0-9_]*)\.(\d{1,5})((?:~[^~]+)*)")
_PART = re.compile(r"(\d{1,5}):(\d{1,15})(?:\.(-?\d{1,9})\.(\d{1,9}))?")


class Place(NamedTuple):
    """An event's place in its partition: the record, the command in it, the event's number among that command's."""

    offset: int
    index: int  # type: ignore[assignment]  # a field, not tuple.index
    number: int

    def __str__(self) -> str:
        return f"{self.offset}" if self.index == _BEFORE_ALL else f"{self.offset}.{self.index}.{self.number}"


NOWHERE = Place(-1, -1, -1)


def place_of(event: OutEvent) -> Place:
    return Place(event.offset, event.index, event.number)


class Cursor:
    """For each partition the place of the last event that was read; unchangeable.

    Written `social.4~0:12.0.0~2:7.3.1~9f3c2a1b`: the app, its number of partitions, the partitions of which something
    was read, and a checksum. `2:7` stands for all events before those of record 7. Safe in URLs and headers.
    """

    __slots__ = ("_app", "_partitions", "_places")

    def __init__(self, app: str, partitions: int, places: Mapping[int, Place] | None = None) -> None:
        self._app = app
        self._partitions = partitions
        self._places = dict(places or {})

    @classmethod
    def end(cls, log: Log) -> Self:
        """Before the events of all commands that are logged from now on."""
        return cls(log.app, log.partitions, {p: Place(log.end(p), _BEFORE_ALL, 0) for p in range(log.partitions)})

    @classmethod
    def parse(cls, text: str, app: str, partitions: int) -> Self:
        """Raises `Misuse` for a text that is damaged, or is of another app or number of partitions."""
        whole = _WHOLE.fullmatch(unseal(text) or "")
        if whole is None:
            raise Misuse(
                f"{shortened(text)} is not a cursor, or is not whole: take one as it was given, or write {START} or "
                f"{END}."
            )
        if (whole[1], int(whole[2])) != (app, partitions):
            raise Misuse(
                f"The cursor is of app {whole[1]} with {whole[2]} partitions; this is {app} with {partitions}: "
                f"begin with {START} or {END}."
            )
        places = {}
        for part in whole[3].split("~")[1:]:
            found = _PART.fullmatch(part)
            if found is None or int(found[1]) >= partitions:
                raise Misuse(f"{shortened(text)} is not a cursor: {shortened(part)} is no place in it.")
            partition, offset, index, number = found.groups()
            places[int(partition)] = (
                Place(int(offset), _BEFORE_ALL, 0) if index is None else Place(int(offset), int(index), int(number))
            )
        return cls(app, partitions, places)

    def place(self, partition: int) -> Place:
        return self._places.get(partition, NOWHERE)

    def past(self, event: OutEvent) -> Cursor:
        """The cursor of somebody who has read this event too."""
        return self.moved(event.partition, place_of(event))

    def moved(self, partition: int, place: Place) -> Cursor:
        return Cursor(self._app, self._partitions, {**self._places, partition: place})

    def check(self, log: Log) -> None:
        """Raises `Misuse` when it is before the log, or ahead of it: then it is of another one."""
        for partition, place in sorted(self._places.items()):
            if place.offset < log.base:
                raise Misuse(
                    f"The cursor is at record {place.offset} of partition {partition}, and this log begins at record "
                    f"{log.base}: it is of the log that this one was made from by `engram repartition`. Read that to "
                    f"its end, and begin here with {START}."
                )
            end = log.end(partition)
            if place.offset > end or (place.offset == end and place.index != _BEFORE_ALL):
                raise Misuse(
                    f"The cursor is at record {place.offset} of partition {partition}, where the log ends at {end}: "
                    f"it is of another log. Begin with {START} or {END}."
                )

    def __str__(self) -> str:
        parts = [f"{partition}:{place}" for partition, place in sorted(self._places.items())]
        return seal("~".join([f"{self._app}.{self._partitions}", *parts]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cursor) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))


def cursor_of(text: str, log: Log) -> Cursor:
    """The cursor that a text stands for: one that was given, `start` or `end`. Raises `Misuse` for one that is none."""
    if text == START:
        return Cursor(log.app, log.partitions)
    if text == END:
        return Cursor.end(log)
    cursor = Cursor.parse(text, log.app, log.partitions)
    cursor.check(log)
    return cursor
