"""The same records give the same bytes, whatever the process."""

from __future__ import annotations

import sys

from tests.testing.pythons import bytes_of


def test_two_hash_seeds_give_the_same_bytes():
    """Log, states and events of a run are the same to the byte in processes that hash texts differently.

    `make pythons` compares with another version of Python.
    """
    assert bytes_of(sys.executable, hash_seed="1") == bytes_of(sys.executable, hash_seed="2")
