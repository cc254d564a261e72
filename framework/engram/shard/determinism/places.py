"""Where in an app's code something happened: the frames of a handler, told apart from those of libraries."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_FRAMEWORK = str(Path(__file__).parents[2])
# To log, to warn and to import is not to depend on anything, whatever clocks and files it takes.
_LEFT_ALONE = {"importlib", "logging", "structlog", "warnings", "linecache", "traceback", "_frozen_importlib"}


class Place(NamedTuple):
    """The app's own line that led to something, and the function that it called for that: empty if it is the line
    itself."""

    where: str
    called: str


class AppCode:
    """Tells the app's own code from that of libraries: it is of the packages of its commands, or installed nowhere."""

    def __init__(self, modules: Iterable[str]) -> None:
        self._packages = {_package(module) for module in modules}

    def has(self, filename: str, module: str) -> bool:
        if _package(module) in self._packages:
            return not filename.startswith("<")  # made at run time, such as the methods of a dataclass
        return not filename.startswith((*_LIBRARIES, _FRAMEWORK, "<"))

    def holds(self, frame: FrameType) -> bool:
        return self.has(frame.f_code.co_filename, str(frame.f_globals.get("__name__", "")))

    def line(self, code: CodeType, number: int) -> str:
        return f"{code.co_qualname}, {short(code.co_filename)}, line {number}"

    def place(self, frame: FrameType | None, until: CodeType) -> Place | None:
        """The place of what happens in `frame`, within what `until` has called; None for what is left alone."""
        found: Place | None = None
        below = ""
        while frame is not None and frame.f_code is not until:
            module = str(frame.f_globals.get("__name__", ""))
            if _package(module) in _LEFT_ALONE or "importlib" in frame.f_code.co_filename:
                return None
            if found is None and self.holds(frame):
                found = Place(self.line(frame.f_code, frame.f_lineno), below)
            below = f"{module}.{frame.f_code.co_qualname}"
            frame = frame.f_back
        return found


def short(filename: str) -> str:
    """A file's last two names: enough to find it."""
    return "/".join(Path(filename).parts[-2:])


def _package(module: str) -> str:
    return module.partition(".")[0]
