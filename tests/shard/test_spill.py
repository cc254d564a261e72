"""Cold entities on disk: a place for them, and shards that keep few in memory."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from random import Random

import pytest
from engram import Misuse
from engram.image.home import Older
from engram.log.partitioner import partition_of
from engram.shard import spill
from engram.shard.spill import Spill
from hypothesis import given, settings
from hypothesis import strategies as st

from sample_apps.social.commands import Follow, Publish, Register
from sample_apps.social.queries import Profile
from tests.shard.network import Network, Owner

KEYS = st.sampled_from(["ada", "bob", "cleo", "d\u1e17", ""])
STATES = st.binary(max_size=40)
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEYS, st.one_of(STATES, st.builds(Older, st.sampled_from([1, "2 coin=3"]), STATES))),
        st.tuples(st.just("delete"), KEYS, st.none()),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(changes=CHANGES, buffer=st.integers(1, 60), worth=st.integers(0, 60))
def test_it_is_a_dict(tmp_path_factory, changes, buffer, worth):
    """Whatever is put in, replaced and taken out, however often the file is written anew: it holds what a dict does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spill, "_BUFFER_BYTES", buffer)
        patch.setattr(spill, "_WORTH_BYTES", worth)
        kept, twin = Spill(tmp_path_factory.getbasetemp()), {}
        for what, key, item in changes:
            if what == "set":
                kept[key] = twin[key] = item
            elif key in twin:
                del kept[key], twin[key]
            else:
                with pytest.raises(KeyError):
                    del kept[key]
            assert dict(kept) == twin
            assert len(kept) == len(twin)
        kept.close()


def test_of_many_every_one_is_found(tmp_path):
    """Thousands, put in, replaced and taken out at random: found where they are, gone through once, others not."""
    kept, twin = Spill(tmp_path), {}
    rng = Random(5)
    for _ in range(30_000):
        key = f"k{rng.randrange(5000)}"
        if rng.random() < 0.6:
            kept[key] = twin[key] = rng.randbytes(rng.choice([3, 30, 900]))
        else:
            assert kept.pop(key, None) == twin.pop(key, None)

    assert dict(kept) == twin
    assert len(kept) == len(twin)
    assert not any(f"x{number}" in kept for number in range(1000))


def test_those_that_go_during_a_walk_are_not_in_its_way(tmp_path):
    """A walk gives each key that is there when its turn comes, once, and knows which it has given."""
    kept = Spill(tmp_path)
    for number in range(3000):
        kept[f"k{number}"] = b"x" * (number % 700)
    walk = kept.walk()
    first = walk.take(1000)
    gone = [*first[::7], *(f"k{number}" for number in range(1500, 3000, 3))]
    for key in gone:
        del kept[key]
    rest = [*walk.take(1000), *walk.take(1000), *walk.take(1)]

    assert sorted([*first, *rest]) == sorted({*first, *kept})
    assert len(first) == 1000
    assert all(walk.passed(key) for key in kept)
    assert not any(kept.walk().passed(key) for key in kept)


def test_the_file_does_not_grow_for_ever(tmp_path, monkeypatch):
    """What was replaced or taken out is given back, when it is worth the trouble."""
    monkeypatch.setattr(spill, "_BUFFER_BYTES", 100)
    monkeypatch.setattr(spill, "_WORTH_BYTES", 1000)
    kept = Spill(tmp_path)
    for number in range(10_000):
        kept[f"k{number % 7}"] = b"x" * 50
        if number % 7 == 3:
            del kept["k3"]

    assert kept.disk_bytes < 3000
    assert len(kept) == 7 - 1 + ("k3" in kept)


def test_nothing_is_left_on_the_disk(tmp_path):
    """The file has no name: even a process that is killed leaves nothing."""
    kept = Spill(tmp_path)
    kept["ada"] = b"{}"

    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_used_is_refused(tmp_path):
    """With its name, before anything is put there."""
    (tmp_path / "file").write_text("")

    with pytest.raises(Misuse, match=r"cannot be spilled to .*file"):
        Spill(tmp_path / "file" / "spill")


def test_a_full_disk_changes_nothing(tmp_path, monkeypatch):
    """What does not fit raises, and everything that was there is still there."""
    monkeypatch.setattr(spill, "_BUFFER_BYTES", 10)
    kept = Spill(tmp_path)
    kept["ada"] = b"first and long enough"
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with monkeypatch.context() as patch:
        patch.setattr(spill.os, "pwrite", lambda *_: (_ for _ in ()).throw(full))
        with pytest.raises(OSError, match="No space left"):
            kept["ada"] = b"second and long enough"

    assert dict(kept) == {"ada": b"first and long enough"}
    kept["bob"] = b"third and long enough"
    assert kept["bob"] == b"third and long enough"


def _busy(network: Network, users: int) -> None:
    for number in range(users):
        network.send(f"u{number}", Register(name=f"User {number}"))
        network.send(f"u{number}", Publish(text=f"hello from {number}"))
        network.send(f"u{number}", Follow(whom=f"u{(number * 7 + 1) % users}"))


def _profile(owner: Owner) -> bytes:
    return owner.shard.owned[partition_of("u17", 2)].image.ask(Profile(), "u17")


def _hot(owner: Owner) -> int:
    """How many entities of a partition are in memory after some idle turns, in which spared ones have theirs."""
    for _ in range(10):
        owner.step()
    return max(sum(map(len, owned.image.entities.values())) for owned in owner.shard.owned.values())


def test_a_shard_keeps_few_entities_and_loses_none(tmp_path: Path):
    """With ten of a partition in memory, the state is that of a shard which keeps all: live, asked, and recovered."""
    network = Network(partitions=2)
    owner = network.start(hot_entities=10, cold=lambda: Spill(tmp_path), snapshot_every=40)
    _busy(network, 100)
    network.settle(owner)

    assert _hot(owner) <= 11
    assert sum(owned.image.count() for owned in owner.shard.owned.values()) >= 100
    live = [owner.shard.owned[p].image.digest() for p in range(2)]
    assert live == [network.replayed(p).digest() for p in range(2)]
    asked = _profile(owner)
    owner.kill()
    again = network.start(hot_entities=10, cold=lambda: Spill(tmp_path))
    assert live == [again.shard.owned[p].image.digest() for p in range(2)]
    assert _profile(again) == asked
    assert _hot(again) <= 11
    network.close()


def test_a_full_disk_does_not_stop_the_shard(tmp_path: Path, monkeypatch):
    """Entities stay in memory while there is no room for them elsewhere, and go when there is."""
    monkeypatch.setattr(spill, "_BUFFER_BYTES", 1)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    network = Network(partitions=1)
    owner = network.start(hot_entities=10, cold=lambda: Spill(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(spill.os, "pwrite", lambda *_: (_ for _ in ()).throw(full))
        _busy(network, 50)
        network.settle(owner)
        assert len(owner.shard.owned[0].image.entities["user"]) == 50
    network.clock.now += 60_000
    network.settle(owner)

    assert _hot(owner) <= 11
    image = owner.shard.owned[0].image
    assert image.digest() == network.replayed(0).digest()
    network.close()
