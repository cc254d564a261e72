"""A line to one shard, for whoever has its address and no gateway."""

from __future__ import annotations

import re
import socket

import zmq

from engram.errors import Corrupt
from engram.serving.wire import decode_response, encode_request
from engram.shard.requests import Report, Reported, ShardStatus

_ADDRESS = re.compile(r"tcp://([^:/]+):(\d+)")


def status_at(address: str, *, seconds: float) -> ShardStatus | None:
    """What the shard at an address says of itself; None if nobody answers there in time, or not as a shard does."""
    if not _somebody_listens(address, seconds):
        return None
    with zmq.Context() as context, context.socket(zmq.DEALER) as line:
        line.setsockopt(zmq.LINGER, 0)
        line.connect(address)
        line.send_multipart(encode_request(Report(1, digests=False)))
        if not line.poll(int(seconds * 1000)):
            return None
        try:
            response = decode_response(line.recv_multipart())
        except Corrupt:
            return None
    return response.status if isinstance(response, Reported) else None


def _somebody_listens(address: str, seconds: float) -> bool:
    """ZeroMQ would go on trying to connect until the time is over."""
    found = _ADDRESS.fullmatch(address)
    if found is None:
        return False
    try:
        socket.create_connection((found[1], int(found[2])), timeout=seconds).close()
    except OSError:
        return False
    return True
