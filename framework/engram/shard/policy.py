"""When a shard does what nobody tells it to do, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """When a partition is snapshotted: after so many handled commands, or after so many seconds in which anything was
    handled, but not before `snapshot_pause` seconds have passed since the last one. Never two at once. While one is
    taken, the shard does nothing else for up to `snapshot_budget_ms` at a time, or until `snapshot_slice` entities are
    encoded, whichever takes longer. One that failed is tried again after a pause that doubles with each failure. A stop
    waits for its last ones for up to `stop_within` seconds; if they are a savepoint, which somebody waits for and which
    is of everything, for up to `savepoint_within`.

    Under full load, with most of a million entities changed each time, a snapshot takes the shard seconds: it then
    rests from them so long that those of all its partitions take `snapshot_share` of its time at most.

    `hot_entities` is how many of a partition's entities are kept as objects; the others are encoded, and wait on disk
    if the shard has room there. 0 is all.

    `missed_records` is how many records are replayed at most to tell subscribers what they have missed.

    And when a handler is reported as stuck: after a record has been in hand for `stuck_after` seconds. With `guard`,
    handlers are watched, and what they touch outside of their world is reported.
    """

    snapshot_every: int = 20_000
    snapshot_seconds: float = 300.0
    snapshot_pause: float = 0.0
    snapshot_budget_ms: float = 5.0
    snapshot_slice: int = 500
    snapshot_share: float = 0.1
    hot_entities: int = 0
    missed_records: int = 100_000
    stop_within: float = 50.0
    savepoint_within: float = 3600.0
    stuck_after: float = 10.0
    guard: bool = False

    def due(self, commands: int, seconds: float) -> bool:
        """Whether it is time for a partition's next one, with so many commands and seconds since the last."""
        if commands == 0 or seconds < self.snapshot_pause:
            return False
        return commands >= self.snapshot_every or seconds >= self.snapshot_seconds

    def rest(self, taken: float) -> float:
        """For how many seconds the shard begins none, after those that took so many seconds of its time."""
        return max(0.0, taken / self.snapshot_share - taken)

    def retry_pause(self, failures: int) -> float:
        """Seconds until the next attempt, after so many that failed in a row: a store that is away is not hammered, and
        once it is back, not much time goes by."""
        return max(self.snapshot_pause, min(_FIRST_PAUSE_S * 2.0 ** (failures - 1), _LONGEST_PAUSE_S))
