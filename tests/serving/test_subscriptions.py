"""Subscriptions: a query's answer now and after each change, in order, for as many readers as there are."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from engram import App, Client, Command, Context, Entity, Position, Query, Rejected, Token
from engram.codec.codec import Codec
from engram.image.image import Handled, Image
from engram.serving.topic import KEPT, AnswerTopic
from engram.shard.policy import Policy
from engram.shard.replay import replay_until
from engram.shard.requests import Changed

from sample_apps.social.queries import Profile
from tests.serving.counter import Add, Value, app
from tests.serving.running import RunningApp
from tests.serving.streams import STREAM, Heard, Reader, next_event, streaming

ADD = "/api/counters/counter/commands/add"
VALUE = "/api/counters/counter/queries/value"


@contextmanager
def reading(running: RunningApp, key: str, *, last: str = "", path: str = VALUE, **more: str) -> Iterator[Reader]:
    with streaming(running, path, {"key": key, **more}, last=last) as reader:
        yield reader


def add(running: RunningApp, key: str, by: int = 1) -> Position:
    response = running.http.post(ADD, params={"key": key}, json={"by": by})
    return Position.parse(response.headers["engram-position"])


def replace_shard(running: RunningApp, key: str) -> None:
    """Kills the shard of an entity, and starts another after three changes that nobody has watched."""
    shard = running.shard_of(key)
    shard.kill()
    for _ in range(3):
        running.http.post(ADD, params={"key": key, "wait": "log"})
    running.start_shard(shard.number, shard.partitions)


def test_first_the_answer_and_then_every_change(counters: RunningApp):
    """In order, each with the position of the record that brought it; what changes nothing is not told."""
    add(counters, "watched")
    with reading(counters, "watched", times="10") as reader:
        first = reader.next()
        positions = []
        for by in (1, 2, 3):
            positions.append(str(add(counters, "watched", by)))
            add(counters, "watched", 0)
            add(counters, "watched", -1)
        changes = [reader.next() for _ in range(3)]

    assert (first.event, first.data["answer"]) == ("answer", 10)
    assert [change.data["answer"] for change in changes] == [20, 40, 70]
    assert [change.data["position"] for change in changes] == positions
    assert [change.id.partition("~")[0] for change in changes] == positions


def test_a_reader_that_comes_back_gets_what_it_has_missed(counters: RunningApp):
    """Every change since the event it names, once and in order; and after the latest, only what is new."""
    with reading(counters, "resumed") as reader:
        last = reader.next()
    for _ in range(5):
        add(counters, "resumed")
    with reading(counters, "resumed", last=last.id) as reader:
        missed = [reader.next() for _ in range(5)]
    with reading(counters, "resumed", last=missed[-1].id) as reader:
        add(counters, "resumed")
        new = reader.next()

    assert [heard.data["answer"] for heard in missed] == [1, 2, 3, 4, 5]
    assert new.data["answer"] == 6


def test_a_reader_that_is_cut_off_again_and_again_sees_every_change_once(counters: RunningApp):
    """While somebody writes, a reader loses its connection after a few events each time."""
    random = Random(11)
    writing = threading.Thread(target=lambda: [add(counters, "cut-off") for _ in range(100)])
    last, seen = "", []
    writing.start()
    while not seen or seen[-1] < 100:
        with reading(counters, "cut-off", last=last) as reader:
            for _ in range(random.randint(1, 6)):
                heard = reader.next()
                seen.append(heard.data["answer"])
                last = heard.id
                if seen[-1] == 100:
                    break
    writing.join()

    assert seen == list(range(seen[0], 101))


def test_what_a_reader_has_seen_is_not_told_again_by_a_gateway_that_does_not_know_it(counters: RunningApp):
    """A gateway that was started since tells what came after it, as if it had been there all the time."""
    add(counters, "new-gateway")
    with reading(counters, "new-gateway") as reader:
        last = reader.next()
    counters.service.subscriptions._topics.clear()
    add(counters, "new-gateway", 0)
    with reading(counters, "new-gateway", last=last.id) as reader:
        add(counters, "new-gateway", 5)
        assert reader.next().data["answer"] == 6
    counters.service.subscriptions._topics.clear()
    add(counters, "new-gateway", 1)
    with reading(counters, "new-gateway", last=last.id) as reader:
        assert [reader.next().data["answer"] for _ in range(2)] == [6, 7]


def test_the_first_answer_is_as_new_as_was_asked_for(counters: RunningApp):
    """Of a topic that others read already, too."""
    with reading(counters, "fresh") as other:
        other.next()
        token = counters.http.post(ADD, params={"key": "fresh", "wait": "log"}).headers["engram-token"]
        with reading(counters, "fresh", at_least=token) as reader:
            assert reader.next().data["answer"] == 1


def test_shards_that_are_killed_or_replaced_are_not_seen(tmp_path: Path):
    """The stream goes on with the next owner, with every change, whoever of the two has seen it."""
    with RunningApp(app, tmp_path) as running, reading(running, "survivor") as reader:
        seen = [reader.next().data["answer"]]
        for number in range(1, 4):
            shard = running.shard_of("survivor")
            if number % 2:
                shard.kill()
            running.start_shard(shard.number, shard.partitions)
            for _ in range(5):
                add(running, "survivor")
            while seen[-1] < 5 * number:
                seen.append(reader.next().data["answer"])

    assert seen == list(range(16))


def test_a_reader_that_is_cut_off_while_shards_are_killed_sees_every_change_once(tmp_path: Path):
    """50 times at random, with shards killed while it reads and while it does not, gateways that do not know it, and
    somebody who goes on writing: it sees what a replay of the log comes to, record by record."""
    random, key, cuts, ended = Random(7), "in-the-storm", 50, threading.Event()

    def write() -> None:
        while not ended.is_set():
            add(running, key)

    with RunningApp(app, tmp_path, policy=Policy(snapshot_every=40)) as running:
        seen: list[Heard] = []
        writing = threading.Thread(target=write)
        writing.start()
        for cut in range(cuts):
            if cut % 7 == 3:
                running.service.subscriptions._topics.clear()  # as if it came to another gateway
            if cut % 10 == 4:
                replace_shard(running, key)
            with reading(running, key, last=seen[-1].id if seen else "") as reader:
                for event in range(random.randint(1, 6)):
                    if (cut % 10, event) == (9, 1):
                        replace_shard(running, key)
                    seen.append(reader.next())
        ended.set()
        writing.join()
        expected = _replayed(running, key)
        with reading(running, key, last=seen[-1].id) as reader:
            while seen[-1].data["answer"] != expected[-1][1]:
                seen.append(reader.next())

    begun = next(number for number, (_, answer) in enumerate(expected) if answer == seen[0].data["answer"])
    assert [heard.data["answer"] for heard in seen] == [answer for _, answer in expected[begun:]]
    assert [heard.data["position"] for heard in seen[1:]] == [position for position, _ in expected[begun + 1 :]]
    assert len(running.shards) >= 2 + cuts // 10
    assert not any("gap" in heard.data for heard in seen)


def test_what_cannot_be_found_out_says_so(tmp_path: Path):
    """Here no record may be replayed for it: changes come as one, with a word that there may have been others."""
    with RunningApp(app, tmp_path, policy=Policy(missed_records=0)) as running, reading(running, "unknown") as reader:
        first = reader.next()
        replace_shard(running, "unknown")
        second = reader.next()
        add(running, "unknown")
        third = reader.next()

    assert [heard.data["answer"] for heard in (first, second, third)] == [0, 3, 4]
    assert [heard.data.get("gap", False) for heard in (first, second, third)] == [False, True, False]


def test_a_reader_is_told_more_than_a_gateway_keeps(counters: RunningApp):
    """One that comes back after that gets all that it has missed, then what all others get."""
    with reading(counters, "long-away") as reader:
        last = reader.next()
    with reading(counters, "long-away") as other:
        other.next()
        for _ in range(KEPT + 20):
            add(counters, "long-away")
            other.next()
        with reading(counters, "long-away", last=last.id) as reader:
            seen = [reader.next().data["answer"] for _ in range(KEPT + 20)]
            add(counters, "long-away")
            seen.append(reader.next().data["answer"])

    assert seen == list(range(1, KEPT + 22))


def test_what_was_lost_on_the_way_is_noticed():
    """A change that does not go on from what was heard is asked for again, once, and is not told."""
    said = [Changed(1, 0, offset, 0, "answer", b"%d" % offset, offset - 1) for offset in range(5)]

    async def hear() -> tuple[list[bool], list[bytes]]:
        topic = AnswerTopic()
        asked = [topic.hear(said[number]) for number in (0, 1, 3, 4, 2, 3, 4)]
        return asked, [topic.change(number).body for number in range(5)]

    asked, told = asyncio.run(hear())
    assert asked == [False, False, True, False, False, False, False]
    assert told == [b"0", b"1", b"2", b"3", b"4"]


def _replayed(running: RunningApp, key: str) -> list[tuple[str, int]]:
    """What the query came to with each record that changed it, and the position of that."""
    partition = running.partition_of(key)
    image, found = Image(partition, Codec(app)), [("", 0)]

    def note(_handled: Handled) -> None:
        answer = json.loads(image.ask(Value(), key))
        if answer != found[-1][1]:
            found.append((str(Position(partition, *image.place)), answer))

    replay_until(image, running.log, running.log.end(partition), effects=note, progress=lambda: None)
    return found


# The typed client


def test_the_client_watches_a_query(counters: RunningApp):
    """From what it has sent itself on, every change comes with the type of the answer."""

    async def talk() -> list[int]:
        seen = []
        async with counters.client() as client:
            await client.submit("by-client", Add())
            async for value in client.watch("by-client", Value(times=2)):
                seen.append(value)
                if len(seen) == 4:
                    return seen
                await client.send("by-client", Add())
        return seen

    assert asyncio.run(talk()) == [2, 4, 6, 8]


def test_the_client_comes_back_after_a_lost_connection(counters: RunningApp):
    """What it missed is there, once, and in order."""

    async def talk() -> list[int]:
        seen = []
        async with counters.client() as client:
            async for value in client.watch("lost-line", Value()):
                seen.append(value)
                if len(seen) == 7:
                    return seen
                if len(seen) in (1, 3):
                    for connection in list(_open_connections(client)):
                        connection.close()
                    for _ in range(3):
                        await client.send("lost-line", Add())
        return seen

    assert asyncio.run(talk()) == [0, 1, 2, 3, 4, 5, 6]


def _open_connections(client: Client) -> Iterator[asyncio.Transport]:
    connector = client._line._http().connector
    assert connector is not None
    for protocol in connector._acquired:
        yield protocol.transport  # type: ignore[misc]  # it is connected


def test_the_client_raises_what_a_watched_query_raises(social: RunningApp):
    """A user who is not there cannot be watched."""

    async def talk() -> None:
        async with social.client() as client:
            with pytest.raises(Rejected, match="unknown_user"):
                async for _ in client.watch("never-there", Profile()):
                    pass

    asyncio.run(talk())


# What is refused


def test_a_query_that_is_rejected_is_409_and_later_an_event(social: RunningApp):
    """Before the stream begins there is a status for it; afterwards it is a change like any other."""
    profile = "/api/social/user/queries/profile"
    refused = social.http.get(profile, params={"key": "nobody-to-watch"}, headers=STREAM)
    social.http.post("/api/social/user/commands/register", params={"key": "nobody-to-watch"}, json={"name": "Now"})
    with reading(social, "nobody-to-watch", path=profile) as reader:
        assert reader.next().data["answer"]["name"] == "Now"

    assert (refused.status_code, refused.json()["code"]) == (409, "unknown_user")


@pytest.mark.parametrize(("last", "status"), [("nonsense", 422), ("99:1.0~0", 422), ("{partition}:999999.0~0", 409)])
def test_a_last_event_that_there_was_not(counters: RunningApp, last: str, status: int):
    """No position, or one of another partition, is 422; one that the log does not have is 409, as with any read."""
    last = last.format(partition=counters.partition_of("no-such-event"))
    response = counters.http.get(VALUE, params={"key": "no-such-event"}, headers={**STREAM, "Last-Event-ID": last})

    assert response.status_code == status


# Many readers, and slow ones


EVALUATED: list[int] = []


@dataclass(slots=True, kw_only=True)
class Dial(Entity, name="dial"):
    value: int = 0


class Turn(Command[Dial, int], name="turn"):
    def handle(self, dial: Dial, ctx: Context) -> int:
        dial.value += 1
        return dial.value


class Show(Query[Dial, int], name="show"):
    def answer(self, dial: Dial) -> int:
        EVALUATED.append(dial.value)
        return dial.value


@pytest.fixture(scope="module")
def dials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    """An app that tells how often its query was evaluated."""
    made = App("dials", commands=[Turn], queries=[Show])
    with RunningApp(made, tmp_path_factory.mktemp("dials"), shards=1, partitions=2) as running:
        yield running


async def _subscribed(dials: RunningApp, key: str) -> AsyncIterator[bytes]:
    nothing = Token("dials", 2)
    return await dials.service.subscribe(key, Show(), at_least=nothing, last=None, seconds=20)


async def _next(stream: AsyncIterator[bytes]) -> bytes:
    async with asyncio.timeout(20):
        return await next_event(stream)


def test_thousands_of_readers_cost_one_evaluation_per_change(dials: RunningApp):
    """2,000 subscribers of one query see ten changes, and the query was evaluated ten times more."""

    async def watch() -> int:
        streams = [await _subscribed(dials, "popular") for _ in range(2000)]
        for stream in streams:
            await _next(stream)
        before = len(EVALUATED)
        for expected in range(1, 11):
            await dials.service.send("popular", Turn(), seconds=20)
            for stream in streams:
                assert b'"answer":%d,' % expected in await _next(stream)
        for stream in streams:
            await stream.aclose()  # type: ignore[attr-defined]  # it is a generator
        return len(EVALUATED) - before

    # Once more for each renewal of the lease, every five seconds.
    assert 10 <= dials.on_loop(watch()) < 20


def test_a_reader_that_is_too_slow_is_dropped_with_the_reason(dials: RunningApp):
    """It gets no gap: either what comes next, or the word that it is too far behind."""

    async def dawdle() -> tuple[list[bytes], list[bytes]]:
        slow, fast = await _subscribed(dials, "slow"), await _subscribed(dials, "slow")
        heard = [await _next(slow)]
        await _next(fast)
        for _ in range(KEPT + 10):
            await dials.service.send("slow", Turn(), seconds=20)
            await _next(fast)
        heard += [message async for message in slow]
        await fast.aclose()  # type: ignore[attr-defined]  # it is a generator
        again = await _subscribed(dials, "slow")
        latest = [await _next(again)]
        await again.aclose()  # type: ignore[attr-defined]  # it is a generator
        return heard, latest

    heard, latest = dials.on_loop(dawdle())

    assert b"event: dropped" in heard[-1]
    assert b"266 changes behind, and 256 are kept" in heard[-1]
    assert len(heard) == 2
    assert b'"answer":%d,' % (KEPT + 10) in latest[0]


def test_what_nobody_reads_is_watched_no_longer(dials: RunningApp):
    """A lease that is not renewed ends, and the query is not evaluated any more."""

    async def leave() -> None:
        stream = await _subscribed(dials, "left")
        await _next(stream)
        await stream.aclose()  # type: ignore[attr-defined]  # it is a generator

    dials.on_loop(leave())
    topics = dials.service.subscriptions._topics
    ((ids, topic),) = (found for what, found in topics.items() if what.key == "left")
    topic.left -= 60
    dials.wait_until(lambda: not {*ids} & {*dials.service._router._watched})
    assert topic.readers == 0
