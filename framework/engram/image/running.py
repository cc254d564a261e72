"""Which command a thread is handling just now, as another thread sees it."""

from __future__ import annotations

import traceback
from types import FrameType
from typing import NamedTuple

from engram.image.image import Image

_STACK_CHARACTERS = 4000


class Running(NamedTuple):
    """A command whose handler runs. Without a name it is not known: the record is being decoded, or about to be.

    `stack` is as in a traceback, from the handler on; of a long one its end.
    """

    index: int | None  # type: ignore[assignment]  # a field, not tuple.index
    command: str
    key: str
    stack: str


def running_in(frame: FrameType) -> Running | None:
    """What the thread with this innermost frame handles; None when it handles no record.

    Costs the handling thread nothing, which is why it is not noted there command by command.
    """
    inner: list[FrameType] = []
    here: FrameType | None = frame
    while here is not None:
        if here.f_code is Image._run.__code__ and (names := here.f_locals).keys() >= {"index", "command", "key"}:
            return Running(names["index"], names["command"].__engram__.name or "", names["key"], _told(inner or [here]))
        if here.f_code is Image.handle.__code__:
            return Running(None, "", "", _told(inner or [here]))
        inner.append(here)
        here = here.f_back
    return None


def _told(inner: list[FrameType]) -> str:
    frames = ((frame, frame.f_lineno) for frame in reversed(inner))
    text = "".join(traceback.StackSummary.extract(frames).format())
    return text if len(text) <= _STACK_CHARACTERS else "...\n" + text[-_STACK_CHARACTERS:]
