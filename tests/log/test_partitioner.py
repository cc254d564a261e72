"""Keys are in the partitions that Kafka would put them in."""

from __future__ import annotations

import pytest
from engram.log.partitioner import murmur2, partition_of
from hypothesis import given
from hypothesis import strategies as st

# From Kafka's own UtilsTest.testMurmur2, as signed 32-bit integers.
KAFKA = {
    "21": -973932308,
    "foobar": -790332482,
    "a-little-bit-long-string": -985981536,
    "a-little-bit-longer-string": -1486304829,
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    "abc": 479470107,
}


@pytest.mark.parametrize(("key", "expected"), KAFKA.items())
def test_murmur2_is_kafkas(key, expected):
    """The hash of Kafka's own test keys is the one in Kafka's tests."""
    assert murmur2(key.encode()) == expected & 0xFFFFFFFF


@pytest.mark.parametrize(("key", "expected"), KAFKA.items())
def test_the_partition_is_kafkas(key, expected):
    """The partition is the hash without its sign bit, modulo their number: Kafka's `toPositive`."""
    assert partition_of(key, 7) == (expected & 0x7FFFFFFF) % 7


@given(st.text(min_size=1), st.integers(1, 1000))
def test_every_key_has_a_partition(key, partitions):
    """Any text is in one of the partitions, and always in the same."""
    partition = partition_of(key, partitions)
    assert 0 <= partition < partitions
    assert partition == partition_of(key, partitions)


def test_keys_spread_evenly():
    """Ten thousand keys leave no partition of sixteen with less than half or more than twice its share."""
    counts = [0] * 16
    for number in range(10_000):
        counts[partition_of(f"user-{number}", 16)] += 1
    assert min(counts) > 312
    assert max(counts) < 1250
