"""What snapshots take of a shard's time, and how long it rests from them for that."""

from __future__ import annotations

from engram.shard.policy import Policy

# What a command takes is told from this many of them or more: older ones count less and less.
_REMEMBERED = 200_000


class Toll:
    """Of all partitions of a shard together: they share its time, and one writer beside it.

    A snapshot takes what is done for it between commands, and what commands take longer meanwhile: turns with Python's
    lock, caches, and entities that are encoded because a command is about to change them. That is measured against
    what they take while there is no snapshot. No more is counted than went by: a load that has become slower for other
    reasons makes snapshots rarer, for a while.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._seconds = 0.0  # of so many commands, without a snapshot
        self._commands = 0
        self._taken = 0.0
        self._rests_until = 0.0  # by the clock, in milliseconds

    def add(self, seconds: float) -> None:
        """Commands waited for so long."""
        self._taken += seconds

    def handled(self, commands: int, seconds: float, *, under_way: bool) -> None:
        """So many were handled at once, while a snapshot was under way or not."""
        if under_way:
            if self._commands:
                self._taken += max(0.0, seconds - commands * self._seconds / self._commands)
        elif commands:
            self._seconds += seconds
            self._commands += commands
            if self._commands > _REMEMBERED:
                self._seconds /= 2
                self._commands //= 2

    def rest(self, now: int, *, free: bool = False) -> None:
        """One has ended: from here on it is rested for all that was taken up to now, unless that is free."""
        if not free:
            self._rests_until = max(self._rests_until, now) + 1000 * self._policy.rest(self._taken)
        self._taken = 0.0

    def is_over(self, now: int) -> bool:
        """Whether the rest is."""
        return now >= self._rests_until
