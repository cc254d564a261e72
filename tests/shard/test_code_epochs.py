"""New code starts from a snapshot at the boundary, or is refused: it never handles old records unnoticed."""

from __future__ import annotations

import pytest
from engram import App, Misuse
from engram.codec.record import Epoch, Kind, encode_epoch
from engram.log.base import Entry
from engram.shard.end import end_epochs
from engram.shard.versions import check_code_epoch

from sample_apps.social import app as version_1
from sample_apps.social.commands import Follow, Publish, Register
from sample_apps.social.user import User, nobody_was_notified, nobody_was_protected
from tests.shard.network import FaultyLog, Network

version_2 = App(
    "social",
    version=2,
    commands=version_1.commands.values(),
    queries=version_1.queries.values(),
    events=version_1.events.values(),
    upcasters=[nobody_was_protected, nobody_was_notified],
)


def test_records_of_another_version_after_the_last_snapshot_are_refused(network: Network):
    """The refusal says both versions, how many records there are, in which partition, and the way out."""
    owner = network.start()
    key = network.key_in(2)
    network.send(key, Register(name="Ada"))
    network.send(key, Publish(text="one"))
    network.send(key, Publish(text="two"))
    network.settle(owner)
    owner.kill()

    with pytest.raises(Misuse) as refused:
        check_code_epoch(version_2, network.log, network.store)

    assert str(refused.value) == (
        "This is version 2 of social, but 3 records of partition 2 after the last snapshot were handled by version 1. "
        "End version 1 with `engram savepoint`; if it is not running, start it once more, with its own code (`engram "
        "run MODULE:APP --log URL`), and end it so. Then start version 2. If the code of version 1 is gone, write "
        "version=1 into App(...) of this code for one such run: then its handlers decide what these records mean."
    )


def test_the_refusal_counts_the_records_of_all_partitions(network: Network):
    """One number for all, and the partitions that they are in."""
    owner = network.start()
    for partition in (0, 3, 3):
        network.send(network.key_in(partition), Register(name="Ada"))
    network.settle(owner)
    owner.kill()

    with pytest.raises(Misuse, match="but 3 records of partitions 0, 3 after the last snapshot were"):
        check_code_epoch(version_2, network.log, network.store)


def test_the_same_version_is_never_refused(network: Network):
    """A crash of version 1 leaves records that version 1 may replay."""
    owner = network.start()
    network.send("ada", Register(name="Ada"))
    network.settle(owner)
    owner.kill()

    check_code_epoch(version_1, network.log, network.store)


def test_after_a_clean_stop_the_new_version_goes_on(network: Network):
    """The way out works: version 1 runs once more, stops cleanly, and version 2 starts from its snapshots."""
    crashed = network.start()
    network.send("ada", Register(name="Ada"))
    network.settle(crashed)
    crashed.kill()
    network.start().stop(clean=True)

    check_code_epoch(version_2, network.log, network.store)
    owner = network.start(app=version_2)
    network.send("ada", Publish(text="under version 2"))
    network.settle(owner)

    assert [p.replayed for p in owner.shard.status().partitions] == [0, 0, 0, 0]
    assert owner.image(network.home("ada")).app_version == 2


def test_commands_that_came_after_the_clean_stop_belong_to_whoever_handles_them(network: Network):
    """A command appended while nothing ran was handled by nobody: version 2 may start, and it is version 2's then."""
    network.start().stop(clean=True)
    network.send("ada", Register(name="Ada"))
    check_code_epoch(version_2, network.log, network.store)
    owner = network.start(app=version_2)
    network.settle(owner)
    owner.kill()

    check_code_epoch(version_2, network.log, network.store)
    with pytest.raises(Misuse, match="This is version 1 of social, but 1 record of partition"):
        check_code_epoch(version_1, network.log, network.store)


def test_messages_of_a_shard_that_stops_later_do_not_bar_the_new_version(network: Network):
    """Bob's shard has ended when Ada's sends him a message at its own end: version 2 handles it, once."""
    ada, bob = network.key_in(0), network.key_in(1)
    first, second = network.start([0, 2]), network.start([1, 3])
    network.send(ada, Register(name="Ada"))
    network.send(bob, Register(name="Bob"))
    network.settle(first, second)
    second.stop(clean=True)
    network.send(ada, Follow(whom=bob))
    first.stop(clean=True)

    check_code_epoch(version_2, network.log, network.store)
    owner = network.start(app=version_2)
    network.settle(owner)

    assert list(owner.image(1).find(User, bob).followers) == [ada]


def test_what_was_appended_before_the_end_is_handled_before_it(network: Network):
    """A clean stop leaves nothing behind that came before its word in the log: the snapshot is of that record."""
    owner = network.start([0])
    for _ in range(5):
        network.send(network.key_in(0), Publish(text="unread"))
    owner.stop(clean=True)

    (newest, *_) = network.store.manifests(0)
    (last,) = network.log.read(0, newest.offset, limit=9)
    assert Epoch.model_validate_json(last.payload).ends == 0
    assert (newest.offset, newest.app_version) == (6, 1)


def test_the_end_of_an_owner_that_was_replaced_means_nothing(network: Network):
    """Its last word names its own epoch: the newer owner goes on, and its records stay its own."""
    old = network.start([0])
    new = network.start([0])
    end_epochs([old.shard.owned[0]], network.log, owner="old", clock=network.clock)
    network.send(network.key_in(0), Register(name="Ada"))
    network.settle(new)
    new.kill()

    assert new.states == {0: "serving"}
    with pytest.raises(Misuse, match="1 record of partition 0 after the last snapshot was handled by version 1"):
        check_code_epoch(version_2, network.log, network.store)


def test_going_back_to_an_older_version_is_refused_too(network: Network):
    """The check is for another version, not for a newer one."""
    owner = network.start(app=version_2)
    network.send("ada", Register(name="Ada"))
    network.settle(owner)
    owner.kill()

    with pytest.raises(Misuse, match=r"This is version 1 .* was handled by version 2"):
        check_code_epoch(version_1, network.log, network.store)


def test_an_empty_log_is_open_to_any_version(network: Network):
    """Nothing was handled by anybody, so nothing is refused."""
    check_code_epoch(version_2, network.log, network.store)


def test_a_record_of_dropped_duplicates_does_not_bar_the_new_version():
    """Messages that are in the log twice are dropped the second time; a clean stop is clean all the same."""
    log = FaultyLog("social", 2)
    network = Network(2, log=log)
    ada, bob = network.key_in(0), network.key_in(1)
    owner = network.start([0]), network.start([1], snapshot_every=1)
    network.send(ada, Register(name="Ada"))
    network.send(ada, Follow(whom=bob))
    log.unsure = True
    owner[0].step()
    log.unsure = False
    owner[1].step()
    network.settle(*owner)
    for shard in owner:
        shard.stop(clean=True)
    network.close()

    check_code_epoch(version_2, log, network.store)


def test_a_partition_whose_last_word_the_log_did_not_take_has_not_ended():
    """Its state says so, and what to do: what is logged from now on would count as this version's, and bar the next."""
    log = FaultyLog("social", 1)
    network = Network(1, log=log)
    owner = network.start()
    network.send("ada", Register(name="Ada"))
    network.settle(owner)
    log.full = True
    owner.stop(savepoint="last")

    assert owner.states == {0: "stopped"}
    assert "start this version once more, and end it again" in owner.shard.owned[0].problem
    network.close()


def test_a_late_epoch_of_the_old_version_does_not_bar_the_new_one(network: Network):
    """An owner of version 1 that died before its epoch record arrived takes nothing from version 2."""
    network.start().stop(clean=True)
    new = network.start(app=version_2)
    late = Epoch(owner="dead", app_version=1, seen=0)
    network.log.append([Entry(0, Kind.EPOCH, 0, encode_epoch(late))])
    network.send(network.key_in(0), Register(name="Ada"))
    network.settle(new)
    new.kill()

    check_code_epoch(version_2, network.log, network.store)
    assert new.states[0] == "serving"
    assert network.start(app=version_2).states[0] == "serving"
