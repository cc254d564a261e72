"""A transport with nobody at the other end."""

from __future__ import annotations

from engram.log.base import Watch
from engram.shard.requests import Incoming, Response, ShardStatus, Stop


class Silence:
    """See `engram.shard.requests.Transport`. Nothing is asked but what `stop` asks, and nobody hears of anything."""

    address = ""

    def __init__(self) -> None:
        self._asked: list[Incoming] = []

    def stop(self) -> None:
        """Asks the shard to end cleanly."""
        self._asked.append(Incoming(b"", Stop(clean=True)))

    def poll(self, watch: Watch, timeout_ms: int) -> list[Incoming]:
        asked, self._asked = self._asked, []
        return asked

    def send(self, receiver: bytes, response: Response) -> None:
        """Nobody waits for it."""

    def announce(self, status: ShardStatus) -> None:
        """Nobody listens."""

    def announcer(self) -> Silence:
        return self

    def close(self) -> None:
        """Nothing was open."""
