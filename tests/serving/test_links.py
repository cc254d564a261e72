"""Links between a gateway and its shards on the same machine: plain sockets, which may be cut at any moment."""

from __future__ import annotations

import asyncio
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import zmq
from engram.model.token import Token
from engram.serving.direct import DirectDoor, introduction
from engram.serving.framing import Unframed, join
from engram.serving.links import DirectLink, ZmqLink
from engram.serving.wire import decode_response, encode_request
from engram.shard.requests import Answer, Incoming, Report, Request, Response, Stop

from tests.serving.counter import Add, Value, app
from tests.serving.running import SECONDS, RunningApp
from tests.serving.streams import streaming

NOTHING = Token(app.name, 4, {})


class Line:
    """What any process on this machine can say at a shard's direct door."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._unframed = Unframed(1_000_000)
        self._heard: list[list[bytes]] = []

    def say(self, *frames: bytes) -> None:
        self._line.sendall(join([*frames]))

    def ask(self, request: Request) -> None:
        self.say(*encode_request(request))

    def hear(self) -> Response | None:
        """The next response; None when the door has ended the connection."""
        while not self._heard:
            data = self._line.recv(100_000)
            if not data:
                return None
            self._heard += self._unframed.feed(data)
        return decode_response(self._heard.pop(0))


@contextmanager
def at_the_door(running: RunningApp) -> Iterator[Line]:
    host, _, port = running.registry.shards()[0].direct.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=SECONDS) as line:
        yield Line(line)


def cut(running: RunningApp) -> None:
    """On the gateway's event loop: all its connections to shards end."""
    for link in running.service._router._links.values():
        if link._transport is not None:
            link._transport.abort()


def test_a_gateway_goes_by_plain_sockets_where_there_are_no_keys(counters: RunningApp):
    """Nothing but these is between it and the shards."""
    assert {type(link) for link in counters.service._router._links.values()} == {DirectLink}


def test_with_keys_a_gateway_goes_by_zeromq(counters: RunningApp, monkeypatch: pytest.MonkeyPatch):
    """What is said is encrypted then, also on loopback."""
    router = counters.service._router
    (*_, doors) = counters.registry.doors()

    async def new_link() -> type:
        link = router._new_link(doors)
        link.close()
        return type(link)

    monkeypatch.setattr("engram.serving.links.connect_with", lambda _keys, _socket: None)
    monkeypatch.setattr(counters.registry, "keys", object())
    assert counters.on_loop(new_link()) is ZmqLink


def test_a_query_whose_link_is_cut_is_answered_over_the_next(counters: RunningApp):
    """It is asked again as soon as there is a connection, long before its time is up."""

    async def talk() -> list[int]:
        answers = []
        for _ in range(20):
            asking = asyncio.create_task(counters.service.ask("cut", Value(), at_least=NOTHING, seconds=SECONDS))
            await asyncio.sleep(0)
            assert counters.service._router._asked
            cut(counters)
            answers.append(int((await asking).body))
        return answers

    assert counters.on_loop(talk()) == [0] * 20


def test_commands_get_their_replies_though_links_are_cut(counters: RunningApp):
    """Each its own, however often."""

    async def talk() -> list[int]:
        sending = [asyncio.create_task(counters.service.send("cuts", Add(), seconds=SECONDS)) for _ in range(50)]
        while not all(task.done() for task in sending):
            cut(counters)
            await asyncio.sleep(0.2)
        return sorted([int(handled.outcome.body) for handled in await asyncio.gather(*sending)])

    assert counters.on_loop(talk()) == [*range(1, 51)]


def test_who_watches_a_query_hears_of_changes_after_a_cut(counters: RunningApp):
    """All of them, also those of the moments without a link."""
    add = {"params": {"key": "watched-cut"}}
    with streaming(counters, f"{counters.base}/counter/queries/value", add["params"]) as reader:
        assert reader.next().data["answer"] == 0
        for number in range(1, 6):
            counters._loop.call_soon_threadsafe(cut, counters)
            counters.http.post(f"{counters.base}/counter/commands/add", **add)
            assert reader.next().data["answer"] == number


def test_a_shard_that_gets_a_port_of_the_one_before_it_is_reached(fragile: RunningApp, monkeypatch: pytest.MonkeyPatch):
    """Its ZeroMQ port is that of the dead one, and its direct door is elsewhere: the old link is not taken for its."""
    partition, lost = fragile.partition_of("port"), fragile.shard_of("port")
    before = fragile.registry.lookup(partition)
    assert before is not None
    port = int(before.address.rpartition(":")[2])

    def bind(self: zmq.Socket[bytes], host: str) -> int:
        self.bind(f"{host}:{port}")
        return port

    monkeypatch.setattr(zmq.Socket, "bind_to_random_port", bind)
    lost.kill()
    fragile.start_shard(lost.number, lost.partitions)
    fragile.wait_until(lambda: fragile.registry.lookup(partition) != before)
    after = fragile.registry.lookup(partition)

    assert after is not None
    assert after.address == before.address
    assert after.direct != before.direct
    assert fragile.on_loop(fragile.service.ask("port", Value(), at_least=NOTHING, seconds=3)).body == b"0"


def test_whoever_says_a_name_may_do_what_gateways_do(counters: RunningApp):
    """Here: ask a shard for its status."""
    with at_the_door(counters) as line:
        line.say(*introduction(b"g:somebody"))
        line.ask(Report(7, digests=False))
        heard = line.hear()

    assert heard is not None
    assert (heard.id, heard.status.shard) == (7, 0)


def test_a_gateway_that_comes_back_takes_the_place_of_its_old_link(counters: RunningApp):
    """The old connection is over, and what is said to that name comes over the new one."""
    with at_the_door(counters) as old, at_the_door(counters) as new:
        for line, id_ in ((old, 1), (new, 2)):
            line.say(*introduction(b"g:twice"))
            line.ask(Report(id_, digests=False))
            heard = line.hear()
            assert heard is not None
            assert heard.id == id_

        assert old.hear() is None


@pytest.mark.parametrize(
    "said",
    [
        [encode_request(Report(1, digests=False))],
        [introduction(b"g:stops"), encode_request(Stop(clean=True))],
        [introduction(b"g:one"), introduction(b"g:other")],
        [introduction(b"")],
        [introduction(b"\0direct1")],
        [introduction(b"n" * 256)],
        [[*introduction(b"g:more"), b"more"]],
    ],
    ids=["no name", "a stop", "two names", "an empty name", "a name of ours", "a long name", "more than a name"],
)
def test_what_nobody_may_say_at_the_door_ends_the_connection(counters: RunningApp, said: list[list[bytes]]):
    """Its own, and no other."""
    with at_the_door(counters) as line:
        for frames in said:
            line.say(*frames)

        assert line.hear() is None
    assert counters.http.get(f"{counters.base}/counter/queries/value", params={"key": "door"}).status_code == 200


class Door:
    """A shard's direct door, and who waits for its descriptors."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self.writing: set[int] = set()
        self.door = DirectDoor("127.0.0.1", largest=1_000_000, watch=self._watch, forget=self._poll.unregister)

    def turn(self) -> list[Incoming]:
        return [each for descriptor, _ in self._poll.poll(SECONDS * 1000) for each in self.door.ready(descriptor)]

    def _watch(self, descriptor: int, room: bool) -> None:
        self._poll.register(descriptor, select.POLLIN | (select.POLLOUT if room else 0))
        (self.writing.add if room else self.writing.discard)(descriptor)


@pytest.fixture
def reader() -> Iterator[tuple[Door, Line, bytes]]:
    """A door, who has come to it, and the name under which it is answered."""
    door = Door()
    host, _, port = door.door.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=SECONDS) as line:
        door.turn()
        line.sendall(join(introduction(b"g:reader")) + join(encode_request(Report(1, digests=False))))
        (asked,) = door.turn()
        yield door, Line(line), asked.sender
    door.door.close()


def test_what_is_not_read_at_once_comes_whole_and_in_order(reader: tuple[Door, Line, bytes]):
    """The shard goes on meanwhile, and waits for room only as long as there is something left."""
    door, line, name = reader
    sent = [Answer(number, 0, number, 0, b"%d" % number * 50_000) for number in range(300)]
    for answer in sent:
        assert door.door.send(name, answer)
    assert door.writing
    heard: list[Response | None] = []
    reading = threading.Thread(target=lambda: heard.extend(line.hear() for _ in sent))
    reading.start()
    while door.writing:
        door.turn()
    reading.join(SECONDS)

    assert heard == sent


def test_who_does_not_read_is_cut_off(reader: tuple[Door, Line, bytes], monkeypatch: pytest.MonkeyPatch):
    """What is kept for it is bounded; what is said to it after that goes nowhere."""
    monkeypatch.setattr("engram.serving.direct._UNSENT_BYTES", 1_000_000)
    door, line, name = reader
    answer = Answer(1, 0, 1, 0, b"x" * 500_000)
    sent = 0
    while door.door.send(name, answer):
        sent += 1
        assert sent < 1000

    heard = 0
    while line.hear() is not None:
        heard += 1
    assert heard < sent
