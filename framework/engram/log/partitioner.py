"""Which partition a key is in: Kafka's murmur2, so that an app moves between logs without moving keys."""

from __future__ import annotations

from functools import lru_cache

_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


# A gateway and a shard ask for the same keys again and again, and the hash takes microseconds in Python.
@lru_cache(maxsize=1 << 16)
def partition_of(key: str, partitions: int) -> int:
    """The partition of `key`, as Kafka's default partitioner chooses it for the key's UTF-8 bytes."""
    return (murmur2(key.encode()) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """Kafka's 32-bit murmur2, with its seed."""
    length = len(data)
    h = (0x9747B28C ^ length) & _MASK
    whole = length & ~3
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * _M & _MASK
        k ^= k >> 24
        h = (h * _M & _MASK) ^ (k * _M & _MASK)
    tail = data[whole:]
    if tail:
        h ^= int.from_bytes(tail, "little")
        h = h * _M & _MASK
    h ^= h >> 13
    h = h * _M & _MASK
    return h ^ (h >> 15)
