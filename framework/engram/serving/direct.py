"""A shard's second door, for who is on this machine: plain sockets that the shard's own thread reads and writes.

ZeroMQ hands every message to a thread of its own, on both sides: four changes of thread for a question and its answer,
which take longer than all the rest. Only where lines have no keys, which means on loopback: what is said here is
neither encrypted nor closed to anybody on the machine.

Whoever comes may ask. A gateway says its name first (`introduction`): then it may do here all that it may over ZeroMQ,
and replies to the commands that it has written come here too.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress

import structlog

from engram.errors import Corrupt
from engram.serving.framing import Unframed, join
from engram.serving.wire import decode_request, encode_response
from engram.shard.requests import Incoming, Question, Request, Response, Stop

# ZeroMQ's identities begin with no such byte, unless they are its own, and these have five.
_SENDER = b"\0direct"
_NAME = b"name"
_LONGEST_NAME = 255  # as with ZeroMQ
_CONNECTIONS = 1000
_READ_BYTES = 256 * 1024
# What a client may leave unread before it is taken for one that does not read any more.
_UNSENT_BYTES = 64 * 1024 * 1024

_logger = structlog.get_logger()


def introduction(name: bytes) -> list[bytes]:
    """The first message of a gateway, whose commands in the log have this name as their writer."""
    return [_NAME, name]


class _Connection:
    def __init__(self, line: socket.socket, sender: bytes, largest: int) -> None:
        self.line = line
        self.sender = sender
        self.named = False
        self.unframed = Unframed(largest)
        self.unsent = bytearray()


class DirectDoor:
    """Listens on `host`. `watch` is told which descriptors to wait for, and whether also for room to write; `forget`
    those that are over. Used on the shard's one thread."""

    def __init__(
        self, host: str, *, largest: int, watch: Callable[[int, bool], None], forget: Callable[[int], None]
    ) -> None:
        self._listener = socket.create_server((host, 0))
        self._listener.setblocking(False)
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        self._largest = largest
        self._watch = watch
        self._forget = forget
        self._made = 0
        self._by_descriptor: dict[int, _Connection] = {}
        self._by_sender: dict[bytes, _Connection] = {}
        watch(self._listener.fileno(), False)

    def ready(self, descriptor: int) -> list[Incoming]:
        """What has come on one of the descriptors; nothing from those that are not of this door."""
        connection = self._by_descriptor.get(descriptor)
        if connection is None:
            if descriptor == self._listener.fileno():
                self._accept()
            return []
        if connection.unsent:
            self._go_on_writing(connection)
        try:
            data = connection.line.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self._drop(connection)
            return []
        try:
            return self._requests(connection, connection.unframed.feed(data))
        except Corrupt as problem:
            _logger.warning("bad_request", problem=str(problem))
            self._drop(connection)
            return []

    def send(self, receiver: bytes, response: Response) -> bool:
        """Sends without waiting, if the receiver came by this door; whether it did."""
        connection = self._by_sender.get(receiver)
        if connection is None:
            return receiver.startswith(_SENDER)  # one of those that are gone
        self._write(connection, join(encode_response(response)))
        return True

    def close(self) -> None:
        for connection in list(self._by_sender.values()):
            self._drop(connection)
        self._forget(self._listener.fileno())
        self._listener.close()

    def _requests(self, connection: _Connection, messages: list[list[bytes]]) -> list[Incoming]:
        found = []
        for frames in messages:
            if frames[:1] == [_NAME]:
                self._name(connection, frames)
            else:
                request = decode_request(frames)
                if not (isinstance(request, Question) or (connection.named and _for_gateways(request))):
                    raise Corrupt(f"{type(request).__name__} is not for this door: here one asks")
                found.append(Incoming(connection.sender, request))
        return found

    def _name(self, connection: _Connection, frames: list[bytes]) -> None:
        if connection.named or len(frames) != 2 or not 0 < len(frames[1]) <= _LONGEST_NAME or frames[1][0] == 0:
            raise Corrupt("a name that is none, or a second one")
        before = self._by_sender.get(frames[1])
        if before is not None:
            self._drop(before)  # a gateway that came back is the same gateway
        del self._by_sender[connection.sender]
        connection.sender, connection.named = frames[1], True
        self._by_sender[connection.sender] = connection

    def _accept(self) -> None:
        with suppress(OSError):  # it is gone already
            line, _ = self._listener.accept()
            if len(self._by_sender) >= _CONNECTIONS:
                _logger.warning("too_many_connections", most=_CONNECTIONS)
                line.close()
                return
            line.setblocking(False)
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._made += 1
            connection = _Connection(line, _SENDER + self._made.to_bytes(8, "little"), self._largest)
            self._by_descriptor[line.fileno()] = self._by_sender[connection.sender] = connection
            self._watch(line.fileno(), False)

    def _write(self, connection: _Connection, data: bytes) -> None:
        """What does not go out at once goes when there is room again, and all that comes until then behind it."""
        if not connection.unsent:
            connection.unsent += data[self._sent(connection, data) :]
            if connection.unsent:
                self._watch(connection.line.fileno(), True)
            return
        connection.unsent += data
        if len(connection.unsent) > _UNSENT_BYTES:
            _logger.warning("receiver_too_slow", receiver="a direct line")
            self._drop(connection)

    def _go_on_writing(self, connection: _Connection) -> None:
        del connection.unsent[: self._sent(connection, connection.unsent)]
        if not connection.unsent:
            self._watch(connection.line.fileno(), False)

    @staticmethod
    def _sent(connection: _Connection, data: bytes | bytearray) -> int:
        """How much of it went out. A line that is lost takes everything: that it is lost is found when it is read."""
        try:
            return connection.line.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            return len(data)

    def _drop(self, connection: _Connection) -> None:
        descriptor = connection.line.fileno()
        if self._by_descriptor.pop(descriptor, None) is not None:
            del self._by_sender[connection.sender]
            self._forget(descriptor)
            connection.line.close()


def _for_gateways(request: Request) -> bool:
    return not isinstance(request, Stop)  # only the registry may stop a shard
