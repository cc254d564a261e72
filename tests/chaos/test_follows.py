"""Short storms of follows and unfollows, with a shard killed every second; `make chaos` has the long ones."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import uuid4

import pytest

from tests.chaos.follows import OPTIONS, SOCIAL, FollowStorm, compare
from tests.chaos.storm import LoadHadStopped, running

SECONDS = 10


def storm(log: str, folder: Path) -> dict[str, object]:
    with running(log, folder, *OPTIONS, "--snapshot-every", "300", "--snapshot-pause", "0", app=SOCIAL) as url:
        follows = FollowStorm(log, url, users=24, clients=3)
        asyncio.run(follows.run(SECONDS, print))
        return asyncio.run(compare(follows, least_rate=10))


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("kafka", marks=pytest.mark.kafka)])
def test_following_and_followers_agree_after_a_storm(kind: str, tmp_path: Path, request: pytest.FixtureRequest):
    """With a shard killed every second, every pair agrees at the end, and each acknowledged Follow has one event."""
    if kind == "kafka":
        log = request.getfixturevalue("kafka").url(f"follows-{uuid4().hex[:8]}")
    else:
        log = f"sqlite:{tmp_path / 'follows.db'}"
    figures = storm(log, tmp_path)

    assert figures["digests_equal"]
    assert figures["pairs_compared"] == 24 * 23
    assert figures["events"] > 50
    # On a busy machine a shard takes seconds to come back, and only one that lives is killed.
    assert figures["kills"] >= 3


def test_a_storm_without_load_does_not_count():
    """When clients were hardly acknowledged while shards were killed, the run says that it shows nothing."""
    follows = FollowStorm("", "", users=2, clients=1)
    follows.acknowledged, follows.seconds = 50, 10.0

    with pytest.raises(LoadHadStopped, match="only 5 commands/s during the kills, and 10 are wanted"):
        asyncio.run(compare(follows, least_rate=10))
