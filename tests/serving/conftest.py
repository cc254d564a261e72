from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.read_models.club import app as club
from tests.serving.counter import app
from tests.serving.running import RunningApp


@pytest.fixture(scope="session")
def counters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    """The counters, for all tests together: each takes keys of its own and leaves the shards alone."""
    with RunningApp(app, tmp_path_factory.mktemp("counters")) as running:
        yield running


@pytest.fixture
def fragile(tmp_path: Path) -> Iterator[RunningApp]:
    """Counters for one test that does harm to them."""
    with RunningApp(app, tmp_path) as running:
        yield running


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    """The club, for all tests of a file: each takes games, marks and words of its own."""
    with RunningApp(club, tmp_path_factory.mktemp("club")) as running:
        yield running
