"""The determinism guard: notices what handlers touch while they run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from random import Random
from threading import get_ident
from types import CodeType, FrameType
from typing import Any

from engram.image.home import Handle
from engram.model.app import App
from engram.model.command import Command
from engram.model.context import Context
from engram.model.entity import Entity
from engram.shard.determinism.order import assigned_variables, lines_in_order
from engram.shard.determinism.outside import (
    CHANCE,
    ENVIRON,
    ENVIRONMENT,
    ORDER,
    SEEDING,
    VARIABLES,
    Outside,
    Touch,
    meant,
    name_of,
    of_event,
    of_function,
)
from engram.shard.determinism.places import AppCode

Noted = Callable[[type[Command[Any, Any]], Touch], None]
_Watching = tuple["DeterminismGuard", type[Command[Any, Any]], CodeType]

# What runs now, by thread: an audit hook is the process's, and cannot be taken away again.
_running: dict[int, _Watching] = {}
_hooks: list[Callable[[str, tuple[Any, ...]], None]] = []


class DeterminismGuard:
    """Tells `noted` of everything outside that the handlers of an app touch, when `around` is around them.

    With `closely` every function that a handler calls is looked at, those in C too: little goes unseen, and a handler
    takes several times as long. Without it, the interpreter's audit events are listened to: that costs some tens of
    nanoseconds a command, and sees files, sockets, processes, threads and sleep; the rest is for
    `engram.shard.determinism.inspection` to find before anything runs.

    A touch is told, once for each line, and does no harm to the handler: what a record comes to must not depend on who
    looks at it. What other threads do meanwhile is not a handler's.
    """

    def __init__(self, app: App, noted: Noted, *, closely: bool) -> None:
        self._code = AppCode(cls.__module__ for cls in app.commands.values())
        self._noted = noted
        self._closely = closely
        self._seeded: list[Random] = []
        self._lines: set[str] = set()
        self._called: dict[CodeType, dict[str, Any]] = {}  # the app's own functions that were called
        if not _hooks:
            _hooks.append(_listen)
            sys.addaudithook(_listen)

    def around(self, handle: Handle) -> Handle:
        """The same handler, watched."""
        return self._closely_around(handle) if self._closely else self._lightly_around(handle)

    def _lightly_around(self, handle: Handle) -> Handle:
        def run(command: Command[Any, Any], entity: Entity, ctx: Context) -> Any:
            thread = get_ident()
            _running[thread] = self, type(command), code
            try:
                return handle(command, entity, ctx)
            finally:
                del _running[thread]
                if self._lines:
                    self._lines.clear()

        code = run.__code__
        return run

    def _closely_around(self, handle: Handle) -> Handle:
        def run(command: Command[Any, Any], entity: Entity, ctx: Context) -> Any:
            thread, before = get_ident(), sys.getprofile()
            _running[thread] = watching = self, type(command), code

            def look(frame: FrameType, event: str, function: Any) -> None:
                self._look(watching, frame, event, function)

            mine = before is None or callable(before)  # a profiler that is written in C could not be put back
            if mine:
                sys.setprofile(look)
            try:
                return handle(command, entity, ctx)
            finally:
                if mine:
                    sys.setprofile(before)
                del _running[thread]
                self._read_called(type(command))
                self._seeded.clear()
                self._lines.clear()

        code = run.__code__
        return run

    def _look(self, watching: _Watching, frame: FrameType, event: str, function: Any) -> None:
        """At a call: of a function in C, which `frame` calls, or of one in Python, which is `frame`."""
        if event == "c_call":
            owner = getattr(function, "__self__", None)
            if isinstance(owner, Random) and any(owner is seeded for seeded in self._seeded):
                return
            by_the_app = self._code.holds(frame) and frame.f_code.co_name != "__hash__"
            outside = of_function(function, by_the_app=by_the_app)
            if outside is not None:
                self.touched(watching, outside, name_of(function), frame)
        elif event == "call":
            code = frame.f_code
            if code in ENVIRON:
                self.touched(watching, ENVIRONMENT, ENVIRON[code], frame.f_back)
            elif code is SEEDING:
                self._note_generator(watching, frame)
            elif code not in self._called and self._code.holds(frame):
                self._called[code] = frame.f_globals

    def _note_generator(self, watching: _Watching, frame: FrameType) -> None:
        """A generator with a seed gives the same numbers again, one without does not."""
        if frame.f_locals.get("x") is None:
            self.touched(watching, CHANCE, "random.Random", frame.f_back)
        else:
            self._seeded.append(frame.f_locals["self"])

    def _read_called(self, cls: type[Command[Any, Any]]) -> None:
        """What nothing shows while it runs is read in the source."""
        for code, names in self._called.items():
            for line, text in lines_in_order(code, names):
                self._note(cls, Touch(ORDER, text, self._code.line(code, line)))
            for line, name in assigned_variables(code):
                self._note(cls, Touch(VARIABLES, name, self._code.line(code, line)))
        self._called.clear()

    def touched(self, watching: _Watching, outside: Outside, function: str, frame: FrameType | None) -> None:
        """Something outside was touched in `frame`; told unless it is a library's own business."""
        _, cls, until = watching
        place = self._code.place(frame, until)
        if place is not None:
            called = place.called or function
            self._note(cls, Touch(meant(outside, called), called, place.where))

    def _note(self, cls: type[Command[Any, Any]], touch: Touch) -> None:
        if touch.where not in self._lines:
            self._lines.add(touch.where)
            self._noted(cls, touch)


def _listen(event: str, _arguments: tuple[Any, ...]) -> None:
    """The audit hook: of interest only while a handler runs on the thread."""
    if not _running:
        return
    watching = _running.get(get_ident())
    if watching is None:
        return
    outside = of_event(event)
    if outside is not None:
        watching[0].touched(watching, outside, event, sys._getframe(1))  # noqa: SLF001 - the only way to frames
