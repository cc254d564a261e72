"""What subscribers have missed: a new owner finds the answers of the past out, from snapshots and the log."""

from __future__ import annotations

from engram import App
from engram.errors import Corrupt
from engram.snapshots.base import Loaded
from engram.snapshots.manifest import Manifest
from engram.snapshots.memory import MemorySnapshots

from tests.shard.dominoes import Fall, Fallen, FallLater
from tests.shard.network import Network, Owner
from tests.shard.test_watched import HOUR_MS, changes, subscribe


def fall(table: Network, owner: Owner, times: int, key: str = "d") -> list[int]:
    """Offsets of records, one for each time."""
    offsets = []
    for _ in range(times):
        offsets.append(table.send(key, Fall()).offset)
        table.settle(owner)
    return offsets


def snapshot(table: Network, owner: Owner, key: str = "d") -> None:
    owner.shard.begin_snapshot(table.home(key))
    table.settle(owner)


def told(owner: Owner, number: int = 1) -> list[tuple[int, bytes]]:
    """Changes that a gateway takes from what it hears: each goes on from the one before."""
    said = changes(owner, number)
    at, found = said[0].since, [said[0]]
    for change in said:
        assert at is not None
        assert change.since is not None
        assert change.since <= at, "something is missing"
        if change.offset > at and change.body != found[-1].body:
            found.append(change)
        at = max(at, change.offset)
    return [(change.offset, change.body) for change in found]


def caught_up(table: Network, owner: Owner, after: int, *, number: int = 1) -> list[tuple[int, bytes]]:
    """What a subscriber is told that knows of everything up to a record."""
    subscribe(table, owner, "d", after=after, number=number)
    partition = owner.shard.owned[table.home("d")]
    while owner.shard._missed._passes or partition.watched.behind:
        owner.step()
    return told(owner, number)


def test_a_new_owner_tells_what_was_missed(table: Network):
    """Each change after the place that the subscriber names, from the beginning of the log; then what comes."""
    first = table.start()
    offsets = fall(table, first, 6)
    first.kill()
    second = table.start()
    missed = caught_up(table, second, offsets[1])
    new = fall(table, second, 2)

    assert missed == [(offset, b"%d" % number) for number, offset in enumerate(offsets[2:], 3)]
    assert told(second)[-2:] == [(new[0], b"7"), (new[1], b"8")]


def test_snapshots_are_used_only_from_before_what_was_missed(table: Network):
    """Of two snapshots, the newer is of a state after the place that the subscriber names."""
    first = table.start()
    before = fall(table, first, 2)
    snapshot(table, first)
    missing = fall(table, first, 3)
    snapshot(table, first)
    missing += fall(table, first, 1)
    first.kill()
    # So few that only the older snapshot will do, and not the beginning of the log.
    second = table.start(missed_records=7)

    assert caught_up(table, second, before[-1]) == list(zip(missing, (b"3", b"4", b"5", b"6"), strict=True))


def test_a_damaged_snapshot_is_passed_over(table: Network):
    """The one before it, or the beginning of the log, takes its place."""

    class Damaged(MemorySnapshots):
        def read(self, manifest: Manifest) -> Loaded:
            raise Corrupt(f"the snapshot at record {manifest.offset} is damaged")

    table.store = Damaged(table.app.name)
    first = table.start()
    offsets = fall(table, first, 2)
    snapshot(table, first)
    offsets += fall(table, first, 2)
    first.kill()
    second = table.start()

    assert caught_up(table, second, offsets[1]) == [(offsets[2], b"3"), (offsets[3], b"4")]


def test_more_than_the_limit_comes_as_one(table: Network):
    """Without a word on what was before; and it goes on from there."""
    first = table.start()
    offsets = fall(table, first, 20)
    first.kill()
    second = table.start(missed_records=10)
    subscribe(table, second, "d", after=offsets[0])
    new = fall(table, second, 1)

    assert [(change.body, change.since is None) for change in changes(second)] == [(b"20", True), (b"21", False)]
    assert changes(second)[-1].offset == new[0]


def test_what_another_version_has_handled_is_not_told(table: Network):
    """Its records would mean something else now."""
    first = table.start()
    offsets = fall(table, first, 3)
    first.stop()
    newer = App("dominoes", version=2, commands=[Fall, FallLater], queries=[Fallen])
    second = table.start(app=newer)
    subscribe(table, second, "d", after=offsets[0])
    second.step()

    assert [(change.body, change.since) for change in changes(second)] == [(b"3", None)]


def test_many_are_told_in_one_pass_each_from_its_own_place(table: Network):
    """Messages and timers included; commands go on meanwhile, and nobody is told twice."""
    first = table.start()
    offsets = fall(table, first, 2)
    table.send("other", Fall(onto=("d",)))
    table.send("d", FallLater())
    table.settle(first)
    table.clock.now += HOUR_MS
    table.settle(first)
    offsets += fall(table, first, 100)
    first.kill()
    second = table.start(snapshot_budget_ms=0)
    subscribe(table, second, "d", number=1, after=offsets[0])
    subscribe(table, second, "d", number=2, after=offsets[50])
    new = fall(table, second, 3)
    for number, after in ((1, offsets[0]), (2, offsets[50]), (3, offsets[1])):
        caught_up(table, second, after, number=number)

    of_three = [int(body) for _, body in told(second, 3)]
    assert [int(body) for _, body in told(second, 1)] == list(range(2, 108))
    assert [int(body) for _, body in told(second, 2)] == list(range(54, 108))
    assert of_three == list(range(3, 108))
    assert told(second, 1)[-1][0] == new[-1]


def test_what_was_lost_on_the_way_is_told_again(table: Network):
    """A subscriber that names an older place than the last it was told of gets the changes after it, without a pass."""
    owner = table.start()
    subscribe(table, owner, "d")
    offsets = fall(table, owner, 5)
    subscribe(table, owner, "d", after=offsets[2])

    assert [(c.offset, c.body, c.since) for c in changes(owner)[-3:]] == [
        (offsets[3], b"4", offsets[2]),
        (offsets[4], b"5", offsets[3]),
        (offsets[4], b"5", offsets[4]),
    ]


def test_nothing_of_the_second_image_gets_out(table: Network):
    """No messages, no events, no snapshot, and the partition's own state is as it was."""
    first = table.start()
    offsets = [table.send("d", Fall(onto=("a", "b", "c"))).offset for _ in range(5)]
    table.settle(first)
    first.kill()
    second = table.start()
    table.settle(second)
    home = table.home("d")
    before = second.partition(home), [table.log.end(number) for number in range(4)]
    caught_up(table, second, offsets[0])
    table.settle(second)

    assert (second.partition(home), [table.log.end(number) for number in range(4)]) == before
