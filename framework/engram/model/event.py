"""Events: facts for the outside world, emitted while handling a command."""

from __future__ import annotations

from engram.model.boundary import Boundary


class Event(Boundary):
    """A fact that leaves the application: `ctx.emit(Followed(who="ada", whom="bob"))`.

    It leaves exactly once, with the position of the command that emitted it. Nothing inside the application
    is derived from events: state is changed by commands only.
    """
