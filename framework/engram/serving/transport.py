"""A shard's line to the outside: over ZeroMQ one socket for requests and one to the registry, and a direct door."""

from __future__ import annotations

import select
import socket
import time
from contextlib import suppress
from ipaddress import ip_address
from urllib.parse import urlsplit

import structlog
import zmq

from engram.errors import Corrupt
from engram.log.base import Watch
from engram.serving.curve import LineKeys, connect_with, listen_with
from engram.serving.direct import DirectDoor
from engram.serving.wire import decode_request, encode_response
from engram.shard.requests import Incoming, Response, ShardStatus, Stop

# Without a word from the registry for this long, the application is gone: a shard must not outlive it. Long
# enough for a driver that is suspended for a moment or starved of CPU.
_REGISTRY_SILENCE_S = 20.0
# Not asked for so long, the shard was away itself, in a handler that took its time: what it did not ask for, nobody
# can have answered. Busy shards come back many times a second.
_AWAY_S = 1.0
_MESSAGES_AT_ONCE = 1000
_MESSAGE_BYTES = 32 * 1024 * 1024

_logger = structlog.get_logger()


class ZmqTransport:
    """See `engram.shard.requests.Transport`. Listens where it reaches the registry from: on loopback, if that is there.

    Make it in the process that uses it. With `keys`, it hears and speaks only to those who have them.
    """

    def __init__(self, registry: str, *, keys: LineKeys | None = None) -> None:
        self._context = zmq.Context()
        self._requests: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self._requests.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a gateway that came back is the same gateway
        self._requests.setsockopt(zmq.MAXMSGSIZE, _MESSAGE_BYTES)
        self._requests.setsockopt(zmq.LINGER, 1000)
        listen_with(keys, self._requests)
        host = _own_host(registry)
        self.address = f"tcp://{host}:{self._requests.bind_to_random_port(f'tcp://{host}')}"
        self._registry_address = registry
        self._keys = keys
        self._registry: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        self._registry.setsockopt(zmq.LINGER, 1000)
        connect_with(keys, self._registry)
        self._registry.connect(registry)
        self._heard = self._polled = time.monotonic()
        # Not ZeroMQ's own poller, which takes as long as a query. Its sockets have descriptors that tell of any change,
        # and must be asked what it was.
        self._poller = select.poll()
        self._zmq = self._requests.fileno(), self._registry.fileno()
        for descriptor in self._zmq:
            self._poller.register(descriptor, select.POLLIN)
        self._touched = True  # a socket of ZeroMQ was used since it was last asked whether it has messages
        self._watched: int | None = None
        self._door: DirectDoor | None = None
        self.direct = ""
        if keys is None and ip_address(host).is_loopback:
            self._door = DirectDoor(host, largest=_MESSAGE_BYTES, watch=self._wait_for, forget=self._poller.unregister)
            self.direct = self._door.address

    def poll(self, watch: Watch, timeout_ms: int) -> list[Incoming]:
        if self._watched is None:
            self._watched = watch.fileno()
            self._poller.register(self._watched, select.POLLIN)
        away = time.monotonic() - self._polled
        if away > _AWAY_S:
            self._heard += away
        # What came while we sent or received, the descriptors do not tell of again. To ask costs as much as a query.
        waiting = self._touched and (_has_messages(self._requests) or _has_messages(self._registry))
        self._touched = False
        ready = self._poller.poll(0 if waiting else timeout_ms)
        self._polled = time.monotonic()
        incoming: list[Incoming] = []
        said = waiting
        for descriptor, _ in ready:
            if descriptor in self._zmq:
                said = True
            elif self._door is not None:
                incoming += self._door.ready(descriptor)
        if said:
            self._touched = True
            incoming += self._from_registry()
            incoming += self._from_gateways()
        if self._polled - self._heard > _REGISTRY_SILENCE_S:
            _logger.error("registry_silent", seconds=_REGISTRY_SILENCE_S)
            incoming.append(Incoming(b"", Stop(clean=False)))
        return incoming

    def send(self, receiver: bytes, response: Response) -> None:
        if self._door is not None and self._door.send(receiver, response):
            return
        self._touched = True
        try:
            self._requests.send_multipart([receiver, *encode_response(response)], zmq.NOBLOCK)
        except zmq.Again:
            # Its queue is full: it does not read. It will ask again when it does.
            _logger.warning("receiver_too_slow", receiver=receiver.decode(errors="replace"))

    def announce(self, status: ShardStatus) -> None:
        self._touched = True
        told = status.model_copy(update={"direct": self.direct})
        with suppress(zmq.Again):  # a registry that is gone is noticed by `poll`
            self._registry.send_multipart([b"status", told.model_dump_json().encode()], zmq.NOBLOCK)

    def announcer(self) -> _Announcer:
        return _Announcer(self._context, self._registry_address, self._keys)

    def close(self) -> None:
        if self._door is not None:
            self._door.close()
        self._context.destroy(linger=1000)

    def _wait_for(self, descriptor: int, room: bool) -> None:  # noqa: FBT001 - as DirectDoor tells it
        self._poller.register(descriptor, select.POLLIN | (select.POLLOUT if room else 0))

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


class _Announcer:
    """See `engram.shard.requests.Announcer`. A socket of its own: they are for one thread each."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], registry: str, keys: LineKeys | None) -> None:
        self._registry = context.socket(zmq.DEALER)
        self._registry.setsockopt(zmq.LINGER, 0)
        connect_with(keys, self._registry)
        self._registry.connect(registry)

    def announce(self, status: ShardStatus) -> None:
        _drain(self._registry)  # what the registry says is for the shard, which has its own line
        with suppress(zmq.Again):
            self._registry.send_multipart([b"watchdog", status.model_dump_json().encode()], zmq.NOBLOCK)

    def close(self) -> None:
        self._registry.close()


def _own_host(registry: str) -> str:
    """The address of this machine that the way to the registry begins at. Nothing is sent."""
    parts = urlsplit(registry)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((parts.hostname, parts.port))
        return str(probe.getsockname()[0])


def _has_messages(line: zmq.Socket[bytes]) -> bool:
    return bool(int(line.getsockopt(zmq.EVENTS)) & zmq.POLLIN)


def _drain(line: zmq.Socket[bytes]) -> list[list[bytes]]:
    messages: list[list[bytes]] = []
    try:
        while len(messages) < _MESSAGES_AT_ONCE:
            messages.append(line.recv_multipart(zmq.NOBLOCK))
    except zmq.Again:
        pass
    return messages
