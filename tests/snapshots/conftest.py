from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.snapshots.s3 import S3Server, s3_server


@pytest.fixture(scope="session")
def running_s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def s3(running_s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """A real S3 server, and the environment that leads to it. Its bucket `snapshots` is shared: use a prefix."""
    for name, value in running_s3.environment.items():
        monkeypatch.setenv(name, value)
    return running_s3
