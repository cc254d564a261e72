"""Snapshots that somebody asked for: one after the other in each partition, each answered when it is there."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from engram.clock import Clock
from engram.errors import Misuse
from engram.shard.owned import Owned
from engram.shard.requests import Answer, Incoming, Refusal, Response, SnapshotTaken, TakeSnapshot
from engram.snapshots.manifest import Manifest

Send = Callable[[bytes, Response], None]


class _Order:
    def __init__(self, sender: bytes, request: TakeSnapshot, deadline: int) -> None:
        self.sender = sender
        self.request = request
        self.deadline = deadline  # until when it must have begun


class Orders:
    """Waiting and under way, by partition."""

    def __init__(self, send: Send, clock: Clock) -> None:
        self._send = send
        self._clock = clock
        self._waiting: dict[int, deque[_Order]] = {}
        self._under_way: dict[int, _Order] = {}

    def __bool__(self) -> bool:
        return bool(self._under_way or self._waiting)

    def add(self, incoming: Incoming, request: TakeSnapshot, owned: Owned) -> None:
        """Takes an order, or says at once that this owner cannot fill it."""
        order = _Order(incoming.sender, request, self._clock() + request.timeout_ms)
        if owned.state == "serving":
            self._waiting.setdefault(owned.partition, deque()).append(order)
        else:
            self._refuse_unserved(order, owned)

    def begin_next(self, partition: int) -> TakeSnapshot | None:
        """The order whose turn it is; from now on it is under way."""
        waiting = self._waiting.get(partition)
        if not waiting:
            return None
        order = self._under_way[partition] = waiting.popleft()
        if not waiting:
            del self._waiting[partition]
        return order.request

    def fill(self, manifest: Manifest) -> None:
        """Answers the order of the partition that is under way, if there is one: this snapshot was published."""
        order = self._under_way.pop(manifest.partition, None)
        if order is not None:
            taken = SnapshotTaken.of(manifest)
            body = taken.model_dump_json().encode()
            self._send(order.sender, Answer(order.request.id, manifest.partition, manifest.offset - 1, 0, body))

    def fail(self, partition: int, problem: Exception | None) -> None:
        """Refuses the order of the partition that is under way, if there is one: it came to nothing."""
        order = self._under_way.pop(partition, None)
        if order is not None:
            kind = "misuse" if isinstance(problem, Misuse) else "unavailable"
            self._refuse(order, kind, f"The snapshot of partition {partition} could not be taken: {problem}")

    def look_again(self, owned: Mapping[int, Owned]) -> None:
        """Refuses what has waited too long, and what is for a partition that is not served any more."""
        if not self:
            return
        for partition in [*self._waiting, *self._under_way]:
            if owned[partition].state != "serving":
                for order in self._taken_out(partition):
                    self._refuse_unserved(order, owned[partition])
        now = self._clock()
        for partition, waiting in list(self._waiting.items()):
            for order in [order for order in waiting if now >= order.deadline]:
                waiting.remove(order)
                text = f"Partition {partition} was busy with another snapshot until the time was over: ask again."
                self._refuse(order, "behind", text)
            if not waiting:
                del self._waiting[partition]

    def _taken_out(self, partition: int) -> list[_Order]:
        under_way = self._under_way.pop(partition, None)
        return [*([] if under_way is None else [under_way]), *self._waiting.pop(partition, ())]

    def _refuse_unserved(self, order: _Order, owned: Owned) -> None:
        kind = "recovering" if owned.state in ("loading", "replaying") else owned.state
        self._refuse(order, kind, f"Partition {owned.partition} is {owned.state}. {owned.problem}".rstrip())

    def _refuse(self, order: _Order, kind: str, text: str) -> None:
        self._send(order.sender, Refusal(order.request.id, kind, text))
