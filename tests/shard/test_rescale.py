"""Any number of shards over the same log and snapshots: 1, 4, 3, 8, 2, under load, and nothing is lost or doubled."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engram import Command
from engram.codec.codec import Codec
from engram.image.image import Image
from engram.log.sqlite import SqliteLog
from engram.shard.replay import replay_until
from engram.snapshots.files import FileSnapshots

from sample_apps.social import app
from sample_apps.social.commands import Follow, Publish, Register, Unfollow
from tests.shard.network import Network, Owner
from tests.shard.test_properties import Expected, expect, outside, received
from tests.shard.test_properties import Replay as Replayed

PARTITIONS = 8
SHARDS = (1, 4, 3, 8, 2)
USERS = [f"user{number}" for number in range(40)]
ROUNDS = 12  # of traffic, for each number of shards
AT_ONCE = 10


class Traffic:
    """Clients that send whatever comes to their mind, whether shards are there or not."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._random = random.Random(6)
        self.sent: Counter[str] = Counter()
        for user in USERS:
            self._send(user, Register(name=user))

    def go_on(self) -> None:
        for _ in range(AT_ONCE):
            user, other = self._random.sample(USERS, 2)
            match self._random.randrange(4):
                case 0:
                    self._send(user, Unfollow(whom=other))
                case 1:
                    self._send(user, Publish(text=f"post {self.sent.total()}"))
                case _:
                    self._send(user, Follow(whom=other))

    def _send(self, user: str, command: Command[Any, Any]) -> None:
        self._network.send(user, command)
        self.sent[user] += 1


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    def opened() -> SqliteLog:
        return SqliteLog(tmp_path / "log.db", "social")

    log = SqliteLog(tmp_path / "log.db", "social", partitions=PARTITIONS, create=True)
    made = Network(log=log, store=FileSnapshots(tmp_path / "snapshots", "social"), reopen=opened)
    yield made
    made.close()
    log.close()


def replayed_to(network: Network, partition: int, offset: int) -> str:
    """The digest of the records before `offset`, from zero."""
    image = Image(partition, Codec(app))
    replay_until(image, network.log, offset, effects=lambda *_: None, progress=lambda: None)
    return image.digest()


def places(shards: list[Owner]) -> dict[int, tuple[int, str]]:
    """How far every partition is, and its digest there."""
    found = [(p, shard.image(p)) for shard in shards for p in shard.shard.owned]
    return {p: (image.offset, image.digest()) for p, image in sorted(found)}


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_rescaling_under_load_loses_and_doubles_nothing(network: Network, clean: bool):
    """Through 1, 4, 3, 8 and 2 shards, with commands before, during and after every change, stopped cleanly or killed:
    at each change every partition has the digest that it had, and at the end all there was is there once."""
    traffic = Traffic(network)
    before: dict[int, tuple[int, str]] = {}
    for count in SHARDS:
        shards = [
            network.start(range(number, PARTITIONS, count), number=number, snapshot_every=20) for number in range(count)
        ]
        for partition, (offset, digest) in places(shards).items():
            # What was there when the last shards ended is in what is there now.
            old_offset, old_digest = before.get(partition, (0, ""))
            assert offset >= old_offset
            assert not old_digest or replayed_to(network, partition, old_offset) == old_digest
            assert digest == replayed_to(network, partition, offset)
        for _ in range(ROUNDS):
            traffic.go_on()
            for shard in shards:
                shard.step()
        traffic.go_on()
        for shard in shards:  # one after the other, while those that are left send to those that are not
            traffic.go_on()
            if clean:
                shard.stop()
            else:
                shard.kill()
        before = places(shards)
        traffic.go_on()

    last = [network.start(range(number, PARTITIONS, 2), number=number) for number in range(2)]
    network.settle(*last)
    check_everything(network, last, traffic)


def test_nothing_changes_when_only_the_number_of_shards_does(network: Network):
    """Stopped at rest, every partition has the same digest with 1, 4, 3, 8 and 2 shards, and replays nothing."""
    traffic = Traffic(network)
    first = network.start()
    for _ in range(ROUNDS):
        traffic.go_on()
        first.step()
    network.settle(first)
    digests = {p: digest for p, (_, digest) in places([first]).items()}
    first.stop()

    for count in SHARDS:
        shards = [network.start(range(number, PARTITIONS, count), number=number) for number in range(count)]
        assert {p: digest for p, (_, digest) in places(shards).items()} == digests
        assert [p.replayed for shard in shards for p in shard.shard.status().partitions] == [0] * PARTITIONS
        for shard in shards:
            shard.stop()


def check_everything(network: Network, shards: list[Owner], traffic: Traffic) -> None:
    """Each command, message and event once, and users as the acknowledged commands alone make them."""
    live = {p: shard.image(p) for shard in shards for p in shard.shard.owned}
    replays = [Replayed(network, partition) for partition in range(PARTITIONS)]
    expected = {user: Expected() for user in USERS}
    handled = 0
    for replay in replays:
        arrived = received(network, replay.partition)
        assert replay.image.digest() == live[replay.partition].digest()
        assert replay.events == outside(network, replay.partition), "each event once, none missing"
        assert arrived == {
            other.partition: sent
            for other in replays
            if (sent := [m for m in other.messages if network.home(m[1]) == replay.partition])
        }, "each message once, in order, none missing"
        commands = expect(network, replay.partition, expected)
        assert replay.image.handled == commands + sum(map(len, arrived.values()))
        handled += commands
    assert handled == traffic.sent.total()
    for user, wanted in expected.items():
        found = live[network.home(user)].find(app.entities["user"], user)
        assert found is not None
        assert list(found.following) == wanted.following
        assert [post.text for post in found.posts.values()] == wanted.posts
        assert sorted(found.followers) == sorted(y for y in USERS if user in expected[y].following)
