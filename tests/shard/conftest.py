from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog

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


@pytest.fixture
def quiet() -> Iterator[None]:
    """For tests in which many commands fail: to print their tracebacks would take most of the time."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.configure(**before)
