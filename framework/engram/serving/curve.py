"""Keys for the lines between gateway, registry and shards: encrypted, and closed to everybody without them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple, Self

import zmq

from engram.errors import Misuse

_KEY_SIZE = 40  # in Z85, as ZeroMQ writes them


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

    @classmethod
    def read(cls, path: Path) -> Self:
        """The keys in a file that `kept_keys` has made. Who only connects needs no `listening_secret`: it may have been
        taken out of the copy that they were given, and is empty then. Raises `Misuse` for any other file."""
        try:
            content = json.loads(path.read_bytes())
            keys = cls(*(content.get(name, "").encode() for name in cls._fields))
            sizes = {name: len(key) for name, key in zip(cls._fields, keys, strict=True)}
        except OSError as problem:
            raise Misuse(f"The keys in {path} cannot be read: {problem.strerror}.") from problem
        except (ValueError, AttributeError) as problem:
            raise Misuse(f"{path} has no keys of lines: give the file that `engram run --line-keys` made.") from problem
        wrong = [name for name, size in sizes.items() if size != _KEY_SIZE and (size or name != "listening_secret")]
        if wrong:
            raise Misuse(
                f"{path} has no good {' and no good '.join(wrong)}: a key is a text of {_KEY_SIZE} characters."
            )
        return keys

    def __repr__(self) -> str:
        return "<LineKeys>"  # not for logs


def kept_keys(path: Path) -> LineKeys:
    """The keys in a file, for those who listen; new ones if there is no such file, which only its owner can read."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        keys = LineKeys.read(path)
        if not keys.listening_secret:
            raise Misuse(f"{path} is for those who connect: it has no listening_secret. Give the whole file.") from None
        return keys
    except OSError as problem:
        raise Misuse(f"The keys cannot be kept in {path}: {problem.strerror}.") from problem
    keys = LineKeys.new()
    with os.fdopen(descriptor, "w") as file:
        json.dump({name: key.decode() for name, key in zip(LineKeys._fields, keys, strict=True)}, file, indent=2)
    return keys


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
