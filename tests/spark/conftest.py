from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.spark.running import Running


@pytest.fixture(scope="session", autouse=True)
def quick_java() -> Iterator[None]:
    """JVMs that live for seconds: the quick compiler alone takes a third less of the CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        yield


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Starts apps on real Spark; all of them are ended with the test."""
    started: list[Running] = []

    def start_one(*options: str, **more: str) -> Running:
        started.append(Running(tmp_path, *options, **more))
        return started[-1]

    yield start_one
    for running in started:
        running.close()
