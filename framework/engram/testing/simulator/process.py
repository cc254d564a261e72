"""A simulated process: it dies at any operation, and is cut off from its log or its store."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Literal, NamedTuple

from engram.testing.simulator.clock import VirtualClock

Peer = Literal["log", "store"]
# How much of an append is there, as far as its writer can tell: refused: nothing, and it is told so. For the others it
# is told that nobody knows: unsure: all is there. torn: the first entries of each partition are. late: nothing is there
# yet, and all will be.
Landing = Literal["kept", "refused", "unsure", "torn", "late"]


class Crashed(BaseException):
    """The process is gone, as by SIGKILL. No code of ours catches it."""


class AppendFault(NamedTuple):
    """What becomes of an append. `amount` is how many entries of each partition are there, for one that is torn."""

    landing: Landing
    amount: int = 0


KEPT = AppendFault("kept")


class Process:
    """`reach` comes before every operation on log or store, and `on_operation` hears of each. `counts` has what has
    befallen it, and all others."""

    def __init__(
        self, name: str, clock: VirtualClock, on_operation: Callable[[Process], None], counts: Counter[str]
    ) -> None:
        self.name = name
        self._counts = counts
        self.clock = clock
        self.alive = True
        self.lands = 0  # of the append in which it dies, so many entries of each partition are there
        self._on_operation = on_operation
        self._crash_in: int | None = None
        self._cut: dict[Peer, int] = {}
        self._faults: deque[AppendFault] = deque()

    def crash_after(self, operations: int, lands: int) -> None:
        """It dies after so many operations more, in the middle of the next."""
        self._crash_in, self.lands = operations, lands

    def cut_off(self, peer: Peer, operations: int) -> None:
        """So many operations come to nothing."""
        self._cut[peer] = operations

    def trouble_append(self, fault: AppendFault) -> None:
        """What becomes of its next append for which nothing was said yet."""
        self._faults.append(fault)

    def heal(self) -> None:
        """From here on everything works."""
        self._crash_in = None
        self._cut.clear()
        self._faults.clear()

    def reach(self, peer: Peer) -> bool:
        """Whether it gets there. Raises `Crashed` when it dies instead."""
        if not self.alive:
            raise Crashed(self.name)
        self._on_operation(self)
        if self._crash_in is not None:
            if self._crash_in == 0:
                self.die()
            self._crash_in -= 1
        if self._cut.get(peer, 0):
            self._cut[peer] -= 1
            self._counts[f"operations cut off from the {peer}"] += 1
            return False
        return True

    def die(self) -> None:
        self.alive = False
        self._counts["crashes in an operation"] += 1
        raise Crashed(self.name)

    def next_append(self) -> AppendFault:
        if not self._faults:
            return KEPT
        fault = self._faults.popleft()
        self._counts[f"appends {fault.landing}"] += 1
        return fault
