"""The line of a simulated shard: what it is asked comes from a queue, and everything that it says is heard."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from engram.log.base import Watch
from engram.shard.requests import Incoming, Response, ShardStatus

Heard = Callable[[bytes, Response], None]


class SimulatedTransport:
    """See `engram.shard.requests.Transport`."""

    def __init__(self, address: str, heard: Heard) -> None:
        self.address = address
        self.requests: deque[Incoming] = deque()
        self._heard = heard

    def poll(self, watch: Watch, timeout_ms: int) -> list[Incoming]:
        taken = list(self.requests)
        self.requests.clear()
        return taken

    def send(self, receiver: bytes, response: Response) -> None:
        self._heard(receiver, response)

    def announce(self, status: ShardStatus) -> None:
        """There is no registry here: the simulation knows who owns what."""

    def announcer(self) -> SimulatedTransport:
        return self

    def close(self) -> None: ...
