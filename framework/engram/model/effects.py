"""Effects: what a handler brings about besides the change of its entity, encoded and on its way to the log."""

from __future__ import annotations

from typing import NamedTuple

from engram.model.version import Version

# Where an effect comes from within its partition: offset and index of the command, and its number among that
# command's effects of the same kind.
Place = tuple[int, int, int]


class Cause(NamedTuple):
    """What led to a message that a client's command did not send itself. `root` is the position of the command that
    everything began with, and `depth` how many messages lie between, this one included; a timer begins to count
    anew. `timer` says what the timer was, if one led to it: offset and index of the command that scheduled it, and
    the name of the scheduled one."""

    root: str
    depth: int
    timer: tuple[int, int, str] | None = None


class Message(NamedTuple):
    """An entity's command for another entity. `body` is its JSON; `cause` None is the command that sent it.

    `everywhere` is None for a message to the entity `key`; that of a broadcast goes to all other partitions, and has
    the time at which it was handled at home.
    """

    name: str
    version: Version
    key: str
    body: bytes
    origin: Place
    cause: Cause | None = None
    everywhere: int | None = None


class OutEvent(NamedTuple):
    """An event outside the application. The first four fields say which command emitted it: they are unique.

    `key` is that of the entity that emitted it, `root` the position of the command that everything began with.
    """

    partition: int
    offset: int
    index: int  # type: ignore[assignment]  # a field, not tuple.index
    number: int
    name: str
    version: Version
    time: int
    key: str
    body: bytes
    root: str = ""
