"""A gateway's links to shards: over a plain socket to one on the same machine, and over ZeroMQ to all others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol, cast

import structlog
import zmq
import zmq.asyncio

from engram.errors import Corrupt
from engram.serving.asker import LARGEST
from engram.serving.curve import LineKeys, connect_with
from engram.serving.direct import introduction
from engram.serving.framing import Unframed, join
from engram.serving.wire import decode_response, encode_request
from engram.shard.requests import Request, Response

# A shard that was there a moment ago and does not take a connection is gone, or about to be: its successor announces
# itself. This is for one that has ended our connection because we did not read, and goes on.
_AGAIN_S = 0.1

_logger = structlog.get_logger()


class Link(Protocol):
    """Lives on one event loop, and calls who made it with every response."""

    def post(self, requests: Iterable[Request]) -> None:
        """Sends without waiting: what a full line does not take now, it takes later. A link that is closed meanwhile
        takes what was not sent with it."""

    def close(self) -> None: ...


class DirectLink(asyncio.Protocol):
    """See `engram.serving.direct`. Nothing is kept for a shard that is not connected: when it is, it is sent what
    `still_open` says."""

    def __init__(
        self,
        address: str,
        name: bytes,
        *,
        heard: Callable[[Response], None],
        still_open: Callable[[], Iterable[Request]],
    ) -> None:
        self._address = address
        self._introduction = join(introduction(name))
        self._heard = heard
        self._still_open = still_open
        self._unframed = Unframed(LARGEST)
        self._transport: asyncio.WriteTransport | None = None
        self._over = asyncio.Event()
        self._keeping = asyncio.create_task(self._keep_connected())

    def post(self, requests: Iterable[Request]) -> None:
        if self._transport is not None:
            for request in requests:
                self._transport.write(join(encode_request(request)))

    def close(self) -> None:
        self._keeping.cancel()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.WriteTransport, transport)  # uvloop's are not derived from it
        self._unframed = Unframed(LARGEST)
        self._over.clear()
        transport.write(self._introduction)
        self.post(self._still_open())

    def data_received(self, data: bytes) -> None:
        try:
            for frames in self._unframed.feed(data):
                self._heard(decode_response(frames))
        except Corrupt as problem:  # what comes after it on this line cannot be understood either
            _logger.error("bad_response", shard=self._address, problem=str(problem))
            if self._transport is not None:
                self._transport.abort()

    def connection_lost(self, _problem: Exception | None) -> None:
        self._transport = None
        self._over.set()

    async def _keep_connected(self) -> None:
        host, _, port = self._address.rpartition(":")
        while True:
            with suppress(OSError):
                await asyncio.get_running_loop().create_connection(lambda: self, host, int(port))
                await self._over.wait()
            await asyncio.sleep(_AGAIN_S)


class ZmqLink:
    """To a shard anywhere. With keys it is encrypted, and the only one."""

    def __init__(
        self,
        context: zmq.asyncio.Context,
        address: str,
        name: bytes,
        keys: LineKeys | None,
        *,
        heard: Callable[[Response], None],
    ) -> None:
        self._heard = heard
        self._socket: zmq.asyncio.Socket = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, name)
        self._socket.setsockopt(zmq.LINGER, 0)
        connect_with(keys, self._socket)
        self._socket.connect(address)
        self._receiving = asyncio.create_task(self._receive())

    def post(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self._socket.send_multipart(encode_request(request))

    def close(self) -> None:
        self._receiving.cancel()
        self._socket.close()

    async def _receive(self) -> None:
        while True:
            self._heard(decode_response(await self._socket.recv_multipart()))
