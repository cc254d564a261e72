"""Queries by RPC, past the gateway: answered like any other, wherever the partition is, or refused in time."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from engram import (
    App,
    Behind,
    Command,
    Context,
    Corrupt,
    Entity,
    Foreign,
    Misuse,
    Position,
    Quarantined,
    Query,
    Token,
    Unavailable,
)
from engram.serving.curve import LineKeys
from engram.serving.framing import Unframed, join
from engram.serving.rpc import Rpc
from hypothesis import given
from hypothesis import strategies as st

from tests.serving.counter import Add, Break, Meddle, Value, app
from tests.serving.running import SECONDS, RunningApp

KEYS = LineKeys.new()


@pytest.fixture(params=["plain", "with keys"])
def running(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RunningApp]:
    """Counters whose shards have a direct door, and counters whose lines have keys instead."""
    with RunningApp(app, tmp_path, keys=None if request.param == "plain" else KEYS) as counters:
        yield counters


def rpc_to(running: RunningApp, **how: object) -> Rpc:
    return Rpc(running.registry.address, app, **{"keys": running.registry.keys, "timeout": SECONDS, **how})


def add(running: RunningApp, key: str, by: int = 1) -> Position:
    response = running.http.post(f"{running.base}/counter/commands/add", params={"key": key}, json={"by": by})
    return Position.parse(response.json()["position"])


def test_an_answer_is_that_of_live_state_and_has_its_position(running: RunningApp):
    """It includes what was asked for with `at_least`, and what this object has seen is in its token."""
    sent = add(running, "a", by=3)
    with rpc_to(running) as rpc:
        answered = rpc.ask_at("a", Value(times=2), at_least=sent)

        assert answered.answer == 6
        assert answered.position >= sent
        assert rpc.token == Token(app.name, running.log.partitions, {sent.partition: answered.position.offset})
        assert rpc.ask("nobody", Value()) == 0
        assert {key: rpc.ask(key, Value(), at_least=rpc.token) for key in ("a", "b", "c")} == {"a": 3, "b": 0, "c": 0}


def test_only_an_app_without_keys_has_a_direct_door(running: RunningApp):
    """What is said there is not encrypted."""
    assert all(bool(shard.direct) == (running.registry.keys is None) for shard in running.registry.shards())


def test_a_query_finds_its_partition_after_it_has_moved(running: RunningApp):
    """A shard is killed, and a query that waits meanwhile is answered by the next owner, with all that was there."""
    sent = add(running, "moved")
    with rpc_to(running, timeout=60) as rpc:
        assert rpc.ask("moved", Value(), at_least=sent) == 1
        lost = running.shard_of("moved")
        lost.kill()
        answers: list[int] = []
        asking = threading.Thread(target=lambda: answers.append(rpc.ask("moved", Value())))
        asking.start()
        running.start_shard(lost.number, lost.partitions)
        asking.join(60)

        assert answers == [1]
        assert rpc.ask("moved", Value(), at_least=add(running, "moved")) == 2


def test_a_partition_that_a_living_shard_gave_up_is_asked_for_elsewhere(running: RunningApp):
    """A second owner takes over from one that still answers: no error, and no older answer than was seen."""
    partition = running.partition_of("taken")
    with rpc_to(running, timeout=60) as rpc:
        for number in range(1, 4):
            old, before = running.shard_of("taken"), running.registry.lookup(partition)
            running.start_shard(old.number, old.partitions)
            assert rpc.ask("taken", Value(), at_least=add(running, "taken")) == number
            running.wait_until(lambda before=before: running.registry.lookup(partition) != before)
            assert rpc.ask("taken", Value()) == number
    running.wait_until(
        lambda: all(of.state == "serving" for shard in running.registry.shards() for of in shard.partitions)
    )


def test_without_an_owner_a_query_is_given_up_at_its_deadline(running: RunningApp):
    """`Unavailable`, in about its time, and the other shard's keys are answered as ever."""
    with rpc_to(running) as rpc:
        waits, other = running.key_in(0), running.key_in(1)
        assert rpc.ask(waits, Value()) == 0
        running.shard_of(waits).kill()
        began = time.monotonic()
        with pytest.raises(Unavailable, match=r"partition 0"):
            rpc.ask(waits, Value(), timeout=0.3)

        assert time.monotonic() - began < 30
        assert rpc.ask(other, Value()) == 0


def test_what_was_asked_for_and_is_not_there_in_time_is_behind(running: RunningApp):
    """With the lag, and never an older answer; the line is good for the next query."""
    sent = add(running, "a")
    with rpc_to(running) as rpc:
        with pytest.raises(Behind) as caught:
            rpc.ask("a", Value(), at_least=sent._replace(offset=sent.offset + 5), timeout=0.2)
        assert caught.value.gap == (sent.partition, sent.offset, sent.offset + 5)
        assert rpc.ask("a", Value()) == 1


def test_what_was_asked_for_is_waited_for(running: RunningApp):
    """A record that comes while the query waits is in its answer."""
    sent = add(running, "a")
    with rpc_to(running) as rpc:
        answers: list[int] = []
        bound = sent._replace(offset=sent.offset + 1)
        asking = threading.Thread(target=lambda: answers.append(rpc.ask("a", Value(), at_least=bound)))
        asking.start()
        add(running, "a")
        asking.join(SECONDS)

        assert answers == [2]


class Stranger(Query[Entity, int], name="stranger"):
    def answer(self, entity: Entity) -> int:
        return 1


def test_bad_questions_are_refused_with_their_reason(running: RunningApp):
    """Whatever is wrong with one, the next is answered."""
    with rpc_to(running) as rpc:
        for key, query, error, why in (
            ("a", Stranger(), Misuse, "Stranger is no query of app counters"),
            ("", Value(), Misuse, "key is empty"),
            ("a", Break(), Quarantined, "the machine is on fire"),
            ("a", Meddle(), Misuse, "changed its entity"),
        ):
            with pytest.raises(error, match=why):
                rpc.ask(key, query)
        with pytest.raises(Foreign, match="of app other"):
            rpc.ask("a", Value(), at_least=Token("other", 4, {0: 1}))
        assert rpc.ask("a", Value()) == 0


@dataclass(slots=True, kw_only=True)
class Newer(Entity, name="counter"):
    value: int = 0


class Touch(Command[Newer, None], name="touch"):
    def handle(self, counter: Newer, ctx: Context) -> None: ...


class Later(Query[Newer, int], name="later"):
    def answer(self, counter: Newer) -> int:
        return counter.value


def test_a_query_that_the_app_does_not_have_yet_is_refused(running: RunningApp):
    """Whoever asks may be of a newer version of the app than the shards."""
    newer = App("counters", commands=[Touch], queries=[Later])
    with (
        Rpc(running.registry.address, newer, keys=running.registry.keys) as rpc,
        pytest.raises(Quarantined, match="no query named 'later'"),
    ):
        rpc.ask("a", Later())


def test_another_app_is_not_asked(running: RunningApp):
    """Its partitions are other ones."""
    other = App("others", commands=[Add], queries=[Value])
    with Rpc(running.registry.address, other, keys=running.registry.keys) as rpc:
        for _ in range(2):
            with pytest.raises(Misuse, match="is of app 'counters', and this asks 'others'"):
                rpc.ask("a", Value())


@pytest.mark.parametrize("keys", [None, LineKeys.new()], ids=["without keys", "with keys of another run"])
def test_who_has_not_the_keys_is_not_answered(tmp_path: Path, keys: LineKeys | None):
    """Neither by the registry nor by a shard whose address is known."""
    with RunningApp(app, tmp_path, keys=KEYS) as locked:
        with Rpc(locked.registry.address, app, keys=keys, timeout=1) as rpc:
            with pytest.raises(Unavailable, match="whether the keys are its own"):
                rpc.ask("a", Value())
            rpc._where = locked.on_loop(whereabouts(locked))
            with pytest.raises(Unavailable):
                rpc.ask("a", Value(), timeout=1)
        with rpc_to(locked) as rpc:
            assert rpc.ask("a", Value()) == 0


async def whereabouts(running: RunningApp) -> object:
    return running.registry.whereabouts()


def test_a_partition_that_is_stopped_says_why(fragile: RunningApp):
    """`Corrupt`, at once."""
    with rpc_to(fragile) as rpc:
        key = fragile.key_in(1)
        assert rpc.ask(key, Value()) == 0
        fragile.spoil(1)
        fragile.wait_until(lambda: bool(fragile.registry.problem(1)))
        with pytest.raises(Corrupt, match="cannot be decoded"):
            rpc.ask(key, Value())


NOISE = [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 64, join([b"stop", b'[true,""]']), join([b"ask", b"x", b"{}"]), b"\xff" * 9]


@pytest.mark.parametrize("noise", NOISE)
def test_a_stranger_at_the_direct_door_is_shown_out(counters: RunningApp, noise: bytes):
    """Whatever is said there that is no question ends that connection, and no other."""
    with rpc_to(counters) as rpc:
        assert rpc.ask("door", Value()) == 0
        host, _, port = counters.registry.shards()[0].direct.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=60) as stranger:
            stranger.sendall(noise)
            assert stranger.recv(100) == b""
        assert rpc.ask("door", Value()) == 0


@given(st.lists(st.lists(st.binary(max_size=40), max_size=8), max_size=6), st.data())
def test_messages_arrive_whole_however_they_are_cut(messages: list[list[bytes]], data: st.DataObject):
    """A socket gives bytes in any pieces; what comes out are the messages that went in."""
    sent = b"".join(map(join, messages))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=6), label="cuts"))
    unframed = Unframed(1000)
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
        found += unframed.feed(sent[start:end])

    assert found == messages


@given(st.binary(min_size=5, max_size=60))
def test_bytes_that_are_no_messages_are_corrupt_or_unfinished(noise: bytes):
    """They are never taken for more than what would be sent as these bytes."""
    try:
        found = Unframed(1000).feed(noise)
    except Corrupt:
        return
    assert noise.startswith(b"".join(map(join, found)))


def test_a_message_that_is_too_large_is_corrupt():
    """Before any of it is kept."""
    with pytest.raises(Corrupt, match="1001 bytes, and at most 1000"):
        Unframed(1000).feed(struct.pack("<I", 1001))
