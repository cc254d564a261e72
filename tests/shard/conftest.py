from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.shard.dominoes import app as dominoes
from tests.shard.network import Network


@pytest.fixture
def network() -> Iterator[Network]:
    """Four partitions in memory; whatever shards were started are gone at the end."""
    made = Network(4)
    yield made
    made.close()


@pytest.fixture
def table() -> Iterator[Network]:
    """Four partitions of dominoes, in memory."""
    made = Network(4, app=dominoes)
    yield made
    made.close()
