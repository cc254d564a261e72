"""Server-sent events, as whoever reads them sees them."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from typing import NamedTuple


class ServerSent(NamedTuple):
    """One event. `id` is empty if it has none."""

    id: str
    event: str
    data: str


async def server_sent(chunks: AsyncIterable[bytes]) -> AsyncIterator[ServerSent]:
    """The events in a stream of bytes, however these are cut; comments and what has no data are left out."""
    rest = b""
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n\n")
        for message in whole:
            pairs = (line.partition(": ") for line in message.decode().split("\n"))
            fields = {name: value for name, _, value in pairs}
            if "data" in fields:
                yield ServerSent(fields.get("id", ""), fields.get("event", ""), fields["data"])
