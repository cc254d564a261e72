"""Snapshots from the log alone: the same as the app's own, never further than what was sent, and gone on with."""

from __future__ import annotations

import itertools

import pytest
from engram import Corrupt, Misuse
from engram.clock import system_clock
from engram.shard.rebuild import Rebuild, Rebuilt
from engram.shard.survey import survey
from engram.snapshots.base import Contents, SnapshotStore
from engram.snapshots.memory import MemorySnapshots
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from sample_apps.social.commands import Follow, Publish, Register
from tests.shard.network import FaultyLog, Network
from tests.shard.test_societies import Societies, shard_counts

pytestmark = pytest.mark.usefixtures("quiet")


def rebuilt(
    network: Network, work: SnapshotStore, *, own: SnapshotStore | None = None, every: int = 10**9, anew: bool = False
) -> list[Rebuilt]:
    """Every partition, as `engram rebuild` does it."""
    surveys = [survey(network.log, partition) for partition in range(network.log.partitions)]
    return [
        Rebuild(
            partition=of.partition,
            end=of.end,
            codec=network.codec,
            log=network.log,
            work=work,
            clock=system_clock,
            every=every,
            arrived=None
            if anew
            else {s.partition: s.arrived[of.partition] for s in surveys if of.partition in s.arrived},
            own=own,
        ).run()
        for of in surveys
    ]


def people(network: Network, count: int = 12) -> None:
    for number in range(count):
        network.send(f"user{number}", Register(name="somebody"))
        network.send(f"user{number}", Follow(whom=f"user{(number + 5) % count}"))
        network.send(f"user{number}", Publish(text=f"post {number}"))


def test_a_rebuilt_snapshot_is_the_apps_own_and_a_start_needs_no_replay(network: Network):
    """Digests are equal where the app has snapshots; the next owner loads and replays nothing but epochs."""
    owner = network.start(snapshot_every=10)
    people(network)
    network.settle(owner)
    owner.stop()
    work = MemorySnapshots("social")

    found = rebuilt(network, work, own=network.store)
    assert [each.digest for each in found] == [network.replayed(p).digest() for p in range(4)]
    assert all(each.compared and not any(one.problem for one in each.compared) for each in found)
    assert [each.left for each in found] == [0] * 4
    network.store = work
    again = network.start()
    assert sum(p.replayed for p in again.shard.status().partitions) == 0
    assert {p: again.partition(p).digest for p in range(4)} == {each.partition: each.digest for each in found}


def test_what_was_not_sent_yet_is_left_to_the_next_owner():
    """An owner is killed when it has handled commands and let out nothing of them: the snapshots end before these, and
    the next owner sends everything, once."""
    log = FaultyLog("social", 4)
    network = Network(log=log)
    owner = network.start()
    people(network)
    network.settle(owner)
    sent = sum(map(log.end, range(4)))
    more = [network.send(f"user{n}", Follow(whom=f"user{(n + 1) % 12}")) for n in range(12)]
    log.full = True
    for _ in range(5):
        owner.step()
    owner.kill()
    log.full = False
    assert sum(map(log.end, range(4))) == sent + len(more)
    work = MemorySnapshots("social")

    found = rebuilt(network, work)
    assert sum(each.left for each in found) == len(more)
    network.store = work
    again = network.start()
    network.settle(again)
    followers = [len(user.followers) for p in range(4) for user in again.image(p).entities["user"].values()]
    assert followers == [2] * 12
    events = [log.events(p, after=(-1, 0, 0), limit=1000) for p in range(4)]
    assert sum(e.name == "followed" for e in itertools.chain(*events)) == 24
    network.close()


def test_an_interrupted_rebuild_goes_on_from_its_newest_snapshot(network: Network):
    """What comes out is the same; where it begins is told; what is whole already is not done again."""
    owner = network.start()
    people(network, 40)
    network.settle(owner)
    owner.stop()
    work, expected = MemorySnapshots("social"), rebuilt(network, MemorySnapshots("social"))

    class Killed(Exception):
        pass

    class Dying(MemorySnapshots):
        def publish(self, partition: int, contents: Contents, *, created: int):
            work.publish(partition, contents, created=created)
            raise Killed

    with pytest.raises(Killed):
        rebuilt(network, Dying("social"), every=20)
    found = rebuilt(network, work, every=20)
    again = rebuilt(network, work, every=20)

    assert found[0].begun > 0
    assert [each.digest for each in found] == [each.digest for each in expected]
    assert [each.begun for each in again] == [each.offset for each in expected]
    assert [each.digest for each in again] == [each.digest for each in expected]


def test_another_state_than_the_apps_own_is_refused(network: Network):
    """One sentence with the partition, the record and the way out; with the flag nobody compares."""
    owner = network.start()
    people(network)
    network.settle(owner)
    owner.stop()
    key, other = network.key_in(0), MemorySnapshots("social")
    stranger = Network(log=network.log.__class__("social", 4))
    for _ in range(2):
        stranger.send(key, Register(name="an impostor"))
    image = stranger.replayed(0)
    freeze = image.begin_freeze()
    while freeze.advance(100):
        pass
    other.publish(0, Contents(freeze.columns, freeze.memory, image.count()), created=0)

    with pytest.raises(Corrupt, match=r"Partition 0 comes to another state at record 2 than .* add --anew\."):
        rebuilt(network, MemorySnapshots("social"), own=other)
    assert rebuilt(network, MemorySnapshots("social"), anew=True)[0].left == 0


def test_work_of_a_longer_log_is_refused(network: Network):
    """What an interrupted run has left must be of this log."""
    people(network)
    work = MemorySnapshots("social")
    rebuilt(network, work)
    shorter = Network(4)
    shorter.send("user0", Register(name="somebody"))

    with pytest.raises(Misuse, match=r"the log ends at \d: it is of another log. Begin anew with --from-scratch\."):
        rebuilt(shorter, work)


class Rebuilding(Societies):
    """Generated apps, whose snapshots are lost and rebuilt in between, whatever was sent by then."""

    @rule(count=shard_counts, clean=st.booleans())
    def rebuild(self, count: int, clean: bool) -> None:
        for shard in self.shards:
            if clean:
                shard.stop()
            else:
                shard.kill()
        work = MemorySnapshots(self.society.app.name)
        rebuilt(self.network, work, own=self.network.store, every=7)
        self.network.store = work
        self.shards = self.start(count)


TestRebuilding = Rebuilding.TestCase
TestRebuilding.settings = settings(max_examples=30, stateful_step_count=10, deadline=None)
