"""New code starts from a snapshot at the boundary, or is refused: it never handles old records unnoticed."""

from __future__ import annotations

import pytest
from engram import App, Misuse
from engram.shard.versions import check_code_epoch

from sample_apps.social import app as version_1
from sample_apps.social.commands import Follow, Publish, Register
from tests.shard.network import FaultyLog, Network

version_2 = App(
    "social",
    version=2,
    commands=version_1.commands.values(),
    queries=version_1.queries.values(),
    events=version_1.events.values(),
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
        "This is version 2 of social, but 3 records of partition 2 after its last snapshot belong to version 1. "
        "Run version 1 once more and stop it cleanly (Ctrl-C): it takes a snapshot at its end. Then start version 2."
    )


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
    """A command appended while nothing ran is handled by version 2, once it owns the partition."""
    network.start().stop(clean=True)
    owner = network.start(app=version_2)
    network.send("ada", Register(name="Ada"))
    network.settle(owner)
    owner.kill()

    check_code_epoch(version_2, network.log, network.store)
    with pytest.raises(Misuse, match="This is version 1 of social, but 1 records of partition"):
        check_code_epoch(version_1, network.log, network.store)


def test_going_back_to_an_older_version_is_refused_too(network: Network):
    """The check is for another version, not for a newer one."""
    owner = network.start(app=version_2)
    network.send("ada", Register(name="Ada"))
    network.settle(owner)
    owner.kill()

    with pytest.raises(Misuse, match=r"This is version 1 .* belong to version 2"):
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
