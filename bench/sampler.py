"""Where the time of the main thread goes: its stack, looked at after every millisecond of the process's CPU time."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from types import FrameType

_EVERY_S = 0.001


class Sampler:
    """`kinds` has the parts of paths that tell each kind. A sample is of the kind of its innermost frame that has
    any; what is none of Python's, such as the event loop itself, is of the kind of whoever has called it."""

    def __init__(self, kinds: Mapping[str, Sequence[str]]) -> None:
        self._kinds = kinds
        self._found: Counter[str] = Counter()

    def begin(self) -> None:
        self._found.clear()
        signal.signal(signal.SIGPROF, self._look)
        signal.setitimer(signal.ITIMER_PROF, _EVERY_S, _EVERY_S)

    def end(self) -> dict[str, float]:
        """The share of each kind since it began."""
        signal.setitimer(signal.ITIMER_PROF, 0)
        total = self._found.total() or 1
        return {kind: count / total for kind, count in self._found.most_common()}

    def _look(self, _number: int, frame: FrameType | None) -> None:
        self._found[self._kind(frame)] += 1

    def _kind(self, frame: FrameType | None) -> str:
        while frame is not None:
            path = frame.f_code.co_filename
            for kind, parts in self._kinds.items():
                if any(part in path for part in parts):
                    return kind
            frame = frame.f_back
        return "other"
