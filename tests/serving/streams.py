"""Reading streams of server-sent events, event by event."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx

from tests.serving.running import RunningApp

STREAM = {"Accept": "text/event-stream"}


class Heard(NamedTuple):
    """An event of a stream."""

    id: str
    event: str
    data: dict[str, Any]


class Reader:
    """Reads a stream event by event."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.iter_lines()

    def next(self) -> Heard:
        fields: dict[str, str] = {}
        for line in self._lines:
            name, _, value = line.partition(": ")
            if name in ("id", "event", "data"):
                fields[name] = value
            if not line and "data" in fields:
                return Heard(fields.get("id", ""), fields["event"], json.loads(fields["data"]))
        raise AssertionError("the stream has ended")


@contextmanager
def streaming(
    running: RunningApp, path: str, parameters: dict[str, Any], *, last: str = "", headers: dict[str, str] | None = None
) -> Iterator[Reader]:
    """A stream of answers, after the event with the id `last`."""
    told = {**STREAM, **({"Last-Event-ID": last} if last else {}), **(headers or {})}
    with running.http.stream("GET", path, params=parameters, headers=told) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        yield Reader(response)


async def next_event(stream: AsyncIterator[bytes]) -> bytes:
    """The next event of a stream inside the gateway, without comments."""
    while True:
        message = await anext(stream)
        if b"event: " in message:
            return message
