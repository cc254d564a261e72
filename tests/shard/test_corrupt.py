"""A record that nobody can decode stops its partition, and only that."""

from __future__ import annotations

import pytest
from engram.codec.record import Epoch, Kind, encode_epoch
from engram.log.base import Entry
from engram.shard.requests import Refusal

from sample_apps.social.commands import Publish, Register
from sample_apps.social.queries import Posts
from tests.shard.network import Network

GARBAGE = {
    "no JSON": b"\x00\xff garbage",
    "empty": b"",
    "a header of something else": b'{"hello": "world"}\n[]',
    "an unknown command": (
        b'{"types":[["fly",1]],"which":[0],"keys":["ada"],"writer":"w","sessions":["s"],"session":[0],'
        b'"sequence":[0],"idempotency":{}}\n[{}]'
    ),
    "a newer version": (
        b'{"types":[["register",9]],"which":[0],"keys":["ada"],"writer":"w","sessions":["s"],"session":[0],'
        b'"sequence":[0],"idempotency":{}}\n[{"name":"Ada"}]'
    ),
    "a second command that does not fit": (
        b'{"types":[["register",1]],"which":[0,0],"keys":["ada","bob"],"writer":"w","sessions":["s"],'
        b'"session":[0,0],"sequence":[0,1],"idempotency":{}}\n[{"name":"Ada"},{"name":""}]'
    ),
    "fewer keys than commands": (
        b'{"types":[["register",1]],"which":[0,0],"keys":["ada"],"writer":"w","sessions":["s"],'
        b'"session":[0,0],"sequence":[0,1],"idempotency":{}}\n[{"name":"Ada"},{"name":"Bob"}]'
    ),
    "a session that is not there": (
        b'{"types":[["register",1]],"which":[0],"keys":["ada"],"writer":"w","sessions":[],"session":[0],'
        b'"sequence":[0],"idempotency":{}}\n[{"name":"Ada"}]'
    ),
    "fewer sequence numbers than commands": (
        b'{"types":[["register",1]],"which":[0,0],"keys":["ada","bob"],"writer":"w","sessions":["s"],'
        b'"session":[0,0],"sequence":[0],"idempotency":{}}\n[{"name":"Ada"},{"name":"Bob"}]'
    ),
}


def _spoil(network: Network, partition: int, payload: bytes = b"garbage") -> int:
    return network.log.append([Entry(partition, Kind.COMMANDS, network.clock(), payload)])[0]


@pytest.mark.parametrize("payload", GARBAGE.values(), ids=GARBAGE.keys())
def test_a_record_that_cannot_be_decoded_stops_its_partition_and_changes_nothing(network: Network, payload: bytes):
    """The partition stops with `Corrupt` and the record's position; its image is as it was before the record."""
    owner = network.start()
    network.send(network.key_in(2), Register(name="Ada"))
    network.settle(owner)
    before = owner.image(2).digest()
    offset = _spoil(network, 2, payload)
    network.send(network.key_in(2), Publish(text="behind the bad record"))

    assert owner.step()
    assert owner.states == {0: "serving", 1: "serving", 2: "stopped", 3: "serving"}
    assert owner.partition(2).problem.startswith(f"Corrupt: Record {offset} of partition 2 cannot be decoded: ")
    assert (owner.image(2).digest(), owner.image(2).offset) == (before, offset)


def test_the_other_partitions_go_on(network: Network):
    """After one partition has stopped, commands and queries of the others are served as before."""
    owner = network.start()
    _spoil(network, 0)
    owner.step()
    key = network.key_in(1)
    network.send(key, Register(name="Bob"))
    network.settle(owner)

    assert [replies.partition for replies in owner.replies()] == [1]
    assert owner.image(1).count() == 1


def test_queries_to_a_stopped_partition_get_the_position_of_the_record(network: Network):
    """A stopped partition gives no old answers: it says which record it is stopped at, also to parked queries."""
    owner = network.start()
    key = network.key_in(0)
    position = network.send(key, Register(name="Ada"))
    parked = owner.ask(key, Posts(), at_least=position._replace(offset=position.offset + 9))
    owner.step()
    offset = _spoil(network, 0)
    owner.step()
    later = owner.ask(key, Posts())
    owner.step()

    for number in (parked, later):
        refusal = owner.response(number)
        assert isinstance(refusal, Refusal)
        assert refusal.kind == "stopped"
        assert f"Record {offset} of partition 0" in refusal.text


def test_a_bad_record_stops_the_recovery_of_its_partition_too(network: Network):
    """Another owner meets the same record in its replay, and stops at the same place."""
    network.send(network.key_in(0), Register(name="Ada"))
    offset = _spoil(network, 0)

    owner = network.start()

    assert owner.states == {0: "stopped", 1: "serving", 2: "serving", 3: "serving"}
    assert f"Record {offset} of partition 0" in owner.partition(0).problem
    assert owner.image(0).offset == offset


def test_a_stopped_partition_is_not_snapshotted(network: Network):
    """A clean stop leaves a stopped partition's snapshots alone."""
    owner = network.start()
    _spoil(network, 0)
    owner.step()
    owner.stop(clean=True)

    assert network.store.manifests(0) == []
    assert all(network.store.manifests(partition) for partition in (1, 2, 3))


def test_a_shard_whose_partitions_have_all_stopped_ends(network: Network):
    """A shard with nothing left to serve says that its work is over."""
    owner = network.start([3])
    _spoil(network, 3)

    assert not owner.step()


def test_an_epoch_record_is_checked_like_any_other(network: Network):
    """An epoch record with a field too many is not understood, and stops the partition."""
    owner = network.start([0])
    payload = encode_epoch(Epoch(owner="x", app_version=1))[:-1] + b',"more":1}'
    network.log.append([Entry(0, Kind.EPOCH, network.clock(), payload)])
    owner.step()

    assert owner.states == {0: "stopped"}
