"""A shard's line to the outside over ZeroMQ: one socket for requests, one to the registry."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import structlog
import zmq

from engram.errors import Corrupt
from engram.log.base import Watch
from engram.serving.wire import decode_request, encode_response
from engram.shard.requests import Incoming, Response, ShardStatus, Stop

# Without a word from the registry for this long, the application is gone: a shard must not outlive it. Long
# enough for a driver that is suspended for a moment or starved of CPU.
_REGISTRY_SILENCE_S = 20.0
_MESSAGES_AT_ONCE = 1000
_MESSAGE_BYTES = 32 * 1024 * 1024

_logger = structlog.get_logger()


class ZmqTransport:
    """See `engram.shard.requests.Transport`. Listens on loopback. Make it in the process that uses it."""

    def __init__(self, registry: str) -> None:
        self._context = zmq.Context()
        self._requests: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self._requests.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a gateway that came back is the same gateway
        self._requests.setsockopt(zmq.MAXMSGSIZE, _MESSAGE_BYTES)
        self._requests.setsockopt(zmq.LINGER, 1000)
        self.address = f"tcp://127.0.0.1:{self._requests.bind_to_random_port('tcp://127.0.0.1')}"
        self._registry: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        self._registry.setsockopt(zmq.LINGER, 1000)
        self._registry.connect(registry)
        self._heard = time.monotonic()
        self._poller = zmq.Poller()
        self._poller.register(self._requests, zmq.POLLIN)
        self._poller.register(self._registry, zmq.POLLIN)
        self._watched: int | None = None

    def poll(self, watch: Watch, timeout_ms: int) -> list[Incoming]:
        if self._watched is None:
            self._watched = watch.fileno()
            self._poller.register(self._watched, zmq.POLLIN)
        ready: dict[Any, int] = dict(self._poller.poll(timeout_ms))
        incoming: list[Incoming] = []
        if self._registry in ready:
            incoming += self._from_registry()
        if self._requests in ready:
            incoming += self._from_gateways()
        if time.monotonic() - self._heard > _REGISTRY_SILENCE_S:
            _logger.error("registry_silent", seconds=_REGISTRY_SILENCE_S)
            incoming.append(Incoming(b"", Stop(clean=False)))
        return incoming

    def send(self, receiver: bytes, response: Response) -> None:
        try:
            self._requests.send_multipart([receiver, *encode_response(response)], zmq.NOBLOCK)
        except zmq.Again:
            # Its queue is full: it does not read. It will ask again when it does.
            _logger.warning("receiver_too_slow", receiver=receiver.decode(errors="replace"))

    def announce(self, status: ShardStatus) -> None:
        with suppress(zmq.Again):  # a registry that is gone is noticed by `poll`
            self._registry.send_multipart([b"status", status.model_dump_json().encode()], zmq.NOBLOCK)

    def close(self) -> None:
        self._context.destroy(linger=1000)

    def _from_registry(self) -> list[Incoming]:
        incoming = []
        for frames in _drain(self._registry):
            self._heard = time.monotonic()
            if frames[0] == b"stop":
                incoming.append(Incoming(b"", decode_request(frames)))
        return incoming

    def _from_gateways(self) -> list[Incoming]:
        incoming = []
        for sender, *frames in _drain(self._requests):
            try:
                request = decode_request(frames)
            except Corrupt as problem:
                _logger.warning("bad_request", problem=str(problem))
                continue
            if not isinstance(request, Stop):  # only the registry may stop a shard
                incoming.append(Incoming(sender, request))
        return incoming


def _drain(socket: zmq.Socket[bytes]) -> list[list[bytes]]:
    messages: list[list[bytes]] = []
    try:
        while len(messages) < _MESSAGES_AT_ONCE:
            messages.append(socket.recv_multipart(zmq.NOBLOCK))
    except zmq.Again:
        pass
    return messages
