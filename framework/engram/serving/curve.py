"""Keys for the lines between gateway, registry and shards: encrypted, and closed to everybody without them."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import zmq

from engram.errors import Misuse


class LineKeys(NamedTuple):
    """The keys of one run, made by the driver and handed to the shards with all else that they need.

    Whoever connects must know the public key of those who listen, which is in no message of CURVE: without it nobody
    gets as far as being heard.
    """

    listening_public: bytes
    listening_secret: bytes
    connecting_public: bytes
    connecting_secret: bytes

    @classmethod
    def new(cls) -> Self:
        if not zmq.has("curve"):
            raise Misuse("This ZeroMQ has no CURVE, which authentication needs: install pyzmq from its wheels.")
        return cls(*zmq.curve_keypair(), *zmq.curve_keypair())

    def __repr__(self) -> str:
        return "<LineKeys>"  # not for logs


def listen_with(keys: LineKeys | None, socket: zmq.Socket[Any]) -> None:
    """Before `bind`."""
    if keys is not None:
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, keys.listening_secret)


def connect_with(keys: LineKeys | None, socket: zmq.Socket[Any]) -> None:
    """Before `connect`."""
    if keys is not None:
        socket.setsockopt(zmq.CURVE_SERVERKEY, keys.listening_public)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.connecting_public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, keys.connecting_secret)
