"""Messages between entities arrive exactly once and in order, and events leave once, whatever crashes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest
from engram.codec.codec import Messages
from engram.codec.record import Kind

from sample_apps.social.commands import Follow, Like, Publish, Register, Unfollow
from sample_apps.social.user import User
from tests.shard.network import FaultyLog, Network, Owner


@pytest.fixture
def network() -> Iterator[Network]:
    """Four partitions on a log that can be made to fail."""
    made = Network(4, log=FaultyLog("social", 4))
    yield made
    made.close()


@pytest.fixture
def log(network: Network) -> FaultyLog:
    return cast("FaultyLog", network.log)


def _user(owner: Owner, network: Network, key: str) -> User:
    user = owner.image(network.home(key)).find(User, key)
    assert user is not None
    return user


def _messages(network: Network, partition: int) -> list[str]:
    """Keys and names of all messages in the partition's log, repeated ones included."""
    found = []
    for record in network.log.read(partition, 0, limit=1000):
        if record.kind is Kind.MESSAGES:
            content = network.codec.decode_record(record)
            assert isinstance(content, Messages)
            found += [
                f"{key} {command.__engram__.name}"
                for key, command in zip(content.header.keys, content.commands, strict=True)
            ]
    return found


def _events(network: Network) -> list[str]:
    return sorted(
        event.name for partition in range(4) for event in network.log.events(partition, after=(-1, 0, 0), limit=1000)
    )


def test_messages_cross_shards(network: Network):
    """A message sent on one shard is handled on another, and what that one sends comes back."""
    ada, bob = network.key_in(0), network.key_in(1)
    left, right = network.start([0, 2], number=0), network.start([1, 3], number=1)
    for key in (ada, bob):
        network.send(key, Register(name=key))
    network.send(ada, Follow(whom=bob))
    network.settle(left, right)
    network.send(bob, Publish(text="hello, followers"))
    network.settle(left, right)

    assert list(_user(right, network, bob).followers) == [ada]
    assert [entry.text for entry in _user(left, network, ada).timeline] == ["hello, followers"]


def test_messages_of_a_pair_arrive_in_the_order_they_were_sent(network: Network):
    """Follow and unfollow a hundred times, and the last word is the one that counts."""
    ada, bob = network.key_in(0), network.key_in(1)
    left, right = network.start([0], number=0), network.start([1], number=1)
    network.send(ada, Register(name="Ada"))
    for _ in range(50):
        network.send_all([network.envelope(ada, Follow(whom=bob)), network.envelope(ada, Unfollow(whom=bob))])
        right.step()
    network.send(ada, Follow(whom=bob))
    network.settle(left, right)

    assert _messages(network, 1) == [f"{bob} gain_follower", f"{bob} lose_follower"] * 50 + [f"{bob} gain_follower"]
    assert list(_user(right, network, bob).followers) == [ada]


def test_effects_of_a_shard_that_died_before_its_flush_are_sent_by_the_next_owner(network: Network, log: FaultyLog):
    """Handled but not flushed is not lost: the next owner handles the record again and sends what it sent."""
    ada, bob = network.key_in(0), network.key_in(1)
    sender, receiver = network.start([0]), network.start([1])
    network.send(ada, Register(name="Ada"))
    network.send(ada, Follow(whom=bob))
    log.full = True
    sender.step()
    assert list(_user(sender, network, ada).following) == [bob]
    assert _messages(network, 1) == _events(network) == []
    sender.kill()
    log.full = False

    network.settle(network.start([0]), receiver)

    assert list(_user(receiver, network, bob).followers) == [ada]
    assert _messages(network, 1) == [f"{bob} gain_follower"]
    assert _events(network) == ["followed", "notified"]


def test_effects_of_a_shard_that_died_after_its_flush_are_not_sent_again(network: Network):
    """What the log has already, the next owner leaves out of it."""
    ada, bob = network.key_in(0), network.key_in(1)
    sender, receiver = network.start([0]), network.start([1])
    network.send(ada, Register(name="Ada"))
    network.send(ada, Follow(whom=bob))
    network.settle(sender, receiver)
    sender.kill()

    network.settle(network.start([0]), receiver)

    assert _messages(network, 1) == [f"{bob} gain_follower"]
    assert _events(network) == ["followed", "notified"]


def test_a_receiver_drops_messages_that_it_has_seen(network: Network, log: FaultyLog):
    """An append that was tried twice, because nobody could tell, is in the log twice and takes effect once."""
    ada, bob = network.key_in(0), network.key_in(1)
    sender, receiver = network.start([0]), network.start([1])
    for key in (ada, bob):
        network.send(key, Register(name=key))
    network.send(bob, Publish(text="likeable"))
    network.settle(sender, receiver)
    (post,) = _user(receiver, network, bob).posts
    network.send(ada, Follow(whom=bob))
    network.send(ada, Like(author=bob, post=post))
    log.unsure = True
    sender.step()
    log.unsure = False
    handled = receiver.image(1).handled
    network.settle(sender, receiver)

    assert _messages(network, 1) == [f"{bob} gain_follower", f"{bob} gain_like"] * 2
    assert receiver.image(1).handled == handled + 2
    assert list(_user(receiver, network, bob).followers) == [ada]
    assert network.replayed(1).digest() == receiver.partition(1).digest


def test_a_receiver_that_comes_back_from_a_snapshot_still_drops_what_it_has_seen(network: Network, log: FaultyLog):
    """What was seen is in the snapshot: a repeated message after it changes nothing."""
    ada, bob = network.key_in(0), network.key_in(1)
    sender, receiver = network.start([0]), network.start([1])
    network.send(ada, Register(name="Ada"))
    network.send(ada, Follow(whom=bob))
    log.unsure = True
    sender.step()
    log.unsure = False
    receiver.step()
    receiver.stop()
    assert network.store.manifests(1)
    network.settle(sender)
    network.send(ada, Unfollow(whom=bob))
    network.settle(sender)

    again = network.start([1])

    assert _messages(network, 1) == [f"{bob} gain_follower"] * 2 + [f"{bob} lose_follower"]
    assert list(_user(again, network, bob).followers) == []
    assert again.partition(1).replayed == 1


def _replaced_before_it_could_send(network: Network, log: FaultyLog) -> tuple[Owner, Owner, Owner, str]:
    """An owner that could not send a follow; the new one, which has, and an unfollow too; the receiver, and whom."""
    ada, bob = network.key_in(0), network.key_in(1)
    old, receiver = network.start([0]), network.start([1])
    network.send(ada, Register(name="Ada"))
    network.send(ada, Follow(whom=bob))
    log.full = True
    old.step()
    log.full = False
    new = network.start([0])
    network.send(ada, Unfollow(whom=bob))
    network.settle(new, receiver)
    return old, new, receiver, bob


def test_an_old_owner_that_sends_after_the_new_one_is_heard_once(network: Network, log: FaultyLog):
    """Before it has met the new owner, an old one sends what the new one has sent too: the receiver drops it."""
    old, new, receiver, bob = _replaced_before_it_could_send(network, log)

    old.shard._flusher.turn()
    network.settle(new, receiver)

    assert _messages(network, 1) == [f"{bob} gain_follower", f"{bob} lose_follower", f"{bob} gain_follower"]
    assert list(_user(receiver, network, bob).followers) == []
    assert _events(network) == ["followed", "notified"]


def test_an_old_owner_drops_its_effects_when_it_meets_the_new_one(network: Network, log: FaultyLog):
    """What it could not send, the new owner has sent: it handled the same records."""
    old, new, receiver, bob = _replaced_before_it_could_send(network, log)

    old.step()
    network.settle(new, receiver)

    assert old.states == {0: "moved"}
    assert _messages(network, 1) == [f"{bob} gain_follower", f"{bob} lose_follower"]
    assert list(_user(receiver, network, bob).followers) == []
    assert _events(network) == ["followed", "notified"]


def test_effects_wait_while_the_log_does_not_take_them(network: Network, log: FaultyLog):
    """With a log that is full a shard keeps its effects, goes on answering, and flushes them in order later."""
    ada, bob = network.key_in(0), network.key_in(1)
    owner = network.start([0, 1])
    network.send(ada, Register(name="Ada"))
    network.send(ada, Follow(whom=bob))
    network.send(ada, Unfollow(whom=bob))
    log.full = True
    owner.step()
    owner.step()
    held_back = _messages(network, 1)
    log.full = False
    network.settle(owner)

    assert owner.states == {0: "serving", 1: "serving"}
    assert held_back == []
    assert _messages(network, 1) == [f"{bob} gain_follower", f"{bob} lose_follower"]
    assert _events(network) == ["followed", "notified"]


def test_no_snapshot_is_taken_before_the_effects_are_out(network: Network, log: FaultyLog):
    """A snapshot says that its effects are durable, so it waits for them, also at a clean stop."""
    ada, bob = network.key_in(0), network.key_in(1)
    owner = network.start([0], snapshot_every=1)
    receiver = network.start([1])
    network.send(ada, Register(name="Ada"))
    network.settle(owner)
    (first,) = network.snapshots(0)
    network.send(ada, Follow(whom=bob))
    log.full = True
    for _ in range(5):
        owner.step()
    owner.stop(clean=True)
    assert network.snapshots(0) == [first]
    log.full = False

    network.settle(network.start([0]), receiver)

    assert list(_user(receiver, network, bob).followers) == [ada]


def test_effects_survive_a_log_that_cannot_be_asked_what_it_has(network: Network, log: FaultyLog):
    """A log that fails between handling and sending costs time, not messages."""
    ada, bob = network.key_in(0), network.key_in(1)
    owner = network.start([0, 1])
    network.send(ada, Register(name="Ada"))
    network.send(ada, Follow(whom=bob))
    log.forgetful = True
    owner.step()
    log.forgetful = False
    network.settle(owner)

    assert list(_user(owner, network, bob).followers) == [ada]
    assert [len(replies.outcomes) for replies in owner.replies()] == [1, 1]
