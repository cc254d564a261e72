"""Lines from somebody who asks to one shard: over a plain socket on the same machine, or over ZeroMQ."""

from __future__ import annotations

import socket
import struct
from typing import Protocol

import zmq

from engram.serving.curve import LineKeys, connect_with
from engram.serving.framing import Unframed, join

# Larger than any answer: bodies are bounded where they are made.
LARGEST = 256 * 1024 * 1024
_READ_BYTES = 256 * 1024
_CONNECT_S = 5.0


class Line(Protocol):
    """For one thread. Raises `OSError` when it is lost; what was not answered by then never will be."""

    def send(self, frames: list[bytes]) -> None: ...

    def receive(self) -> list[bytes] | None:
        """The next message; None after a while of silence, so that its user can look for another shard."""

    def close(self) -> None: ...


class DirectLine:
    """See `engram.serving.direct`. No thread but the caller's is between it and the shard."""

    def __init__(self, address: str, *, silence_ms: int) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=_CONNECT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The kernel's own limits: Python's would ask it twice for each message.
        self._socket.settimeout(None)
        limit = struct.pack("@ll", silence_ms // 1000, silence_ms % 1000 * 1000)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self._unframed = Unframed(LARGEST)
        self._whole: list[list[bytes]] = []

    def send(self, frames: list[bytes]) -> None:
        self._socket.sendall(join(frames))

    def receive(self) -> list[bytes] | None:
        while not self._whole:
            try:
                data = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                return None
            if not data:
                raise ConnectionResetError("the shard has ended the connection")
            self._whole = self._unframed.feed(data)
        return self._whole.pop(0)

    def close(self) -> None:
        self._socket.close()


class ZmqLine:
    """The way that gateways take. With keys it is encrypted, and the only one."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], address: str, keys: LineKeys | None, *, silence_ms: int
    ) -> None:
        self._socket = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVTIMEO, silence_ms)
        self._socket.setsockopt(zmq.SNDTIMEO, silence_ms)
        connect_with(keys, self._socket)
        self._socket.connect(address)

    def send(self, frames: list[bytes]) -> None:
        try:
            self._socket.send_multipart(frames)
        except zmq.Again as problem:
            raise ConnectionError("the shard takes nothing any more") from problem

    def receive(self) -> list[bytes] | None:
        try:
            return self._socket.recv_multipart()
        except zmq.Again:
            return None

    def receive_all(self) -> None:
        """Throws away what has come."""
        while self._socket.poll(0):
            self._socket.recv_multipart()

    def close(self) -> None:
        self._socket.close()
