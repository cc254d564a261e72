"""What the handlers of a running shard have touched outside, told once each."""

from __future__ import annotations

from typing import Any

import structlog

from engram.image.home import Handle
from engram.model.app import App
from engram.model.command import Command
from engram.shard.determinism.guard import DeterminismGuard
from engram.shard.determinism.outside import Touch

# More different ones than this are no news.
_KEPT = 100

_logger = structlog.get_logger()


class Touches:
    """Goes around a shard's handlers. Each line of an app that touches something is logged once, and is in the
    shard's status from then on. The command is handled all the same: to refuse it would make its record mean something
    else to a shard without a guard."""

    def __init__(self, app: App) -> None:
        self.told: list[str] = []
        self._guard = DeterminismGuard(app, self._note, closely=False)

    def around(self, handle: Handle) -> Handle:
        return self._guard.around(handle)

    def _note(self, cls: type[Command[Any, Any]], touch: Touch) -> None:
        text = f"{cls.__name__} {touch}."
        if text not in self.told and len(self.told) < _KEPT:
            self.told.append(text)
            _logger.error("handler_not_deterministic", command=cls.__engram__.name, problem=text)
