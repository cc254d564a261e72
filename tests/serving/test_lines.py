"""The lines between gateway, registry and shards, when they have keys: open to those who have them alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq
from engram import Misuse
from engram.serving.curve import LineKeys, connect_with, kept_keys
from engram.serving.wire import encode_request
from engram.shard.requests import Report, ShardStatus
from zmq.utils.monitor import recv_monitor_message

from tests.serving.counter import Add, Value, app
from tests.serving.running import SECONDS, RunningApp

KEYS = LineKeys.new()


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[RunningApp]:
    """Counters whose lines have keys."""
    with RunningApp(app, tmp_path, keys=KEYS) as running:
        yield running


@contextmanager
def line_to(address: str, keys: LineKeys | None) -> Iterator[zmq.Socket[bytes]]:
    context = zmq.Context()
    line = context.socket(zmq.DEALER)
    connect_with(keys, line)
    try:
        yield line
    finally:
        line.close(linger=0)
        context.term()


def test_an_app_works_the_same_with_keys(locked: RunningApp):
    """Commands, queries and digests; and after a shard was lost and replaced."""

    async def talk() -> tuple[int, int]:
        async with locked.client() as client:
            sent = await client.send("a", Add(by=2))
            await client.status(digests=True)
            return sent, await client.ask("a", Value())

    assert asyncio.run(talk()) == (2, 2)
    lost = locked.shard_of("a")
    lost.kill()
    locked.start_shard(lost.number, lost.partitions)
    assert asyncio.run(talk()) == (4, 4)


STRANGERS = {
    "without keys": None,
    "with keys of another run": LineKeys.new(),
    "with a key of ours and a guess": LineKeys.new()._replace(connecting_secret=KEYS.connecting_secret),
}


@pytest.mark.parametrize("keys", STRANGERS.values(), ids=STRANGERS.keys())
def test_a_stranger_is_not_heard(locked: RunningApp, keys: LineKeys | None):
    """Neither by a shard nor by the registry: the line ends before a word was said."""
    shard = locked.registry.shards()[0].address

    for address in (shard, locked.registry.address):
        assert not handshake_succeeds(address, keys)
        assert handshake_succeeds(address, KEYS)


def test_a_stranger_cannot_announce_a_shard(locked: RunningApp):
    """Otherwise everybody's queries would go to it."""
    known = [shard.address for shard in locked.registry.shards()]
    evil = ShardStatus(shard=0, owner="evil", pid=1, address="tcp://127.0.0.1:9", partitions=[])
    with line_to(locked.registry.address, None) as line:
        line.connect(locked.registry.address)
        line.send_multipart([b"status", evil.model_dump_json().encode()])
        lost = locked.shards[1]
        lost.kill()
        locked.start_shard(lost.number, lost.partitions)
        locked.wait_until(lambda: locked.registry.shards()[1].owner == "1-3")  # one who came later is heard

    assert locked.registry.shards()[0].address == known[0]


def test_whoever_has_the_keys_is_answered(locked: RunningApp):
    """The same request that a stranger cannot make."""
    address = locked.registry.shards()[0].address
    with line_to(address, KEYS) as line:
        line.connect(address)
        line.send_multipart(encode_request(Report(1, False)))

        assert line.poll(SECONDS * 1000)
        assert line.recv_multipart()[0] == b"reported"


def test_keys_are_kept_in_a_file(tmp_path: Path):
    """Made once, for its owner alone, and the same from then on; a copy without the secret of those who listen is
    enough to connect with."""
    path = tmp_path / "keys.json"
    made = kept_keys(path)

    assert kept_keys(path) == LineKeys.read(path) == made
    assert path.stat().st_mode & 0o777 == 0o600
    content = json.loads(path.read_text())
    del content["listening_secret"]
    path.write_text(json.dumps(content))
    assert LineKeys.read(path) == made._replace(listening_secret=b"")
    with pytest.raises(Misuse, match="is for those who connect"):
        kept_keys(path)


def test_keys_do_not_show_in_what_is_printed():
    """They travel with all that a shard needs, which may be printed."""
    assert repr(KEYS) == str(KEYS) == "<LineKeys>"


def handshake_succeeds(address: str, keys: LineKeys | None) -> bool:
    """Whether a line comes up, or ends before."""
    with line_to(address, keys) as line:
        monitor = line.get_monitor_socket()
        line.connect(address)
        try:
            while monitor.poll(SECONDS * 1000):
                event = recv_monitor_message(monitor)["event"]
                if event in (zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_DISCONNECTED):
                    return event == zmq.EVENT_HANDSHAKE_SUCCEEDED
            raise AssertionError("nothing happened")
        finally:
            line.disable_monitor()
            monitor.close(linger=0)
