"""A shard dies and another takes over: what was logged gets its reply, and queries find their way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from engram import Unavailable

from tests.serving.counter import Add, Value
from tests.serving.running import SECONDS, RunningApp

ADD = "/api/counters/counter/commands/add"
VALUE = "/api/counters/counter/queries/value"


async def _until(ready: Callable[[], bool]) -> None:
    """Waits for something that happens on another thread."""
    async with asyncio.timeout(SECONDS):
        while not ready():  # noqa: ASYNC110 - nobody there could set an event of this loop
            await asyncio.sleep(0.01)


def test_commands_that_wait_for_a_lost_shard_get_their_replies_from_the_next(fragile: RunningApp):
    """Logged while nobody owned the partition, commands are handled once by the new owner, and their senders told."""
    partition = fragile.partition_of("lost")
    lost = fragile.shard_of("lost")
    fragile.http.post(ADD, params={"key": "lost"})
    lost.kill()
    end = fragile.log.end(partition)

    async def talk() -> tuple[list[int], int]:
        async with fragile.client(patience=0) as client:
            sending = [asyncio.create_task(client.send("lost", Add())) for _ in range(5)]
            await _until(lambda: fragile.log.end(partition) > end)
            assert not any(task.done() for task in sending)
            await asyncio.to_thread(fragile.start_shard, lost.number, lost.partitions)
            replies = await asyncio.gather(*sending)
            return sorted(replies), await client.ask("lost", Value())

    assert asyncio.run(talk()) == ([2, 3, 4, 5, 6], 6)


def test_a_client_that_sends_again_meanwhile_is_counted_once(fragile: RunningApp):
    """A client with little patience for each try sends the same command several times, and it takes effect once."""
    partition = fragile.partition_of("again")
    lost = fragile.shard_of("again")
    lost.kill()
    end = fragile.log.end(partition)

    async def talk() -> tuple[int, int]:
        async with fragile.client(timeout=0.1, patience=SECONDS) as client:
            sending = asyncio.create_task(client.send("again", Add()))
            await _until(lambda: fragile.log.end(partition) > end + 2)
            await asyncio.to_thread(fragile.start_shard, lost.number, lost.partitions)
            reply = await sending
            client._line.timeout = SECONDS
            return reply, await client.ask("again", Value())

    assert asyncio.run(talk()) == (1, 1)


def test_queries_find_the_new_owner(fragile: RunningApp):
    """A query that was sent to a shard that is dead, and one after it, are answered by its successor."""
    fragile.http.post(ADD, params={"key": "moved"})
    lost = fragile.shard_of("moved")
    lost.kill()

    async def talk() -> list[int]:
        async with fragile.client(patience=0) as client:
            asking = asyncio.create_task(client.ask("moved", Value()))
            await _until(lambda: bool(fragile.service._router._asked))
            await asyncio.to_thread(fragile.start_shard, lost.number, lost.partitions)
            return [await asking, await client.ask("moved", Value())]

    assert asyncio.run(talk()) == [1, 1]


def test_a_takeover_from_a_living_owner_is_not_seen_outside(fragile: RunningApp):
    """While a second owner fences the first, commands and queries go on without a problem."""
    old = fragile.shard_of("taken")

    async def talk() -> tuple[list[int], int]:
        async with fragile.client(patience=0) as client:

            async def live() -> list[int]:
                replies = []
                for _ in range(40):
                    replies.append(await client.send("taken", Add()))
                    assert await client.ask("taken", Value()) == replies[-1]
                return replies

            living = asyncio.create_task(live())
            for _ in range(3):
                before = [fragile.registry.lookup(partition) for partition in old.partitions]
                await asyncio.to_thread(fragile.start_shard, old.number, old.partitions)
                # One after the other: of several that begin at once all may be fenced, and nobody serves for a while.
                await _until(lambda before=before: not {*map(fragile.registry.lookup, old.partitions)} & {*before})
            return await living, await client.ask("taken", Value())

    replies, value = asyncio.run(talk())

    assert replies == list(range(1, 41))
    assert value == 40
    old.join()


def test_a_command_without_an_owner_is_503_and_says_that_it_is_logged(fragile: RunningApp):
    """Without an answer in time the sender learns the position: the command will be handled."""
    fragile.shard_of("waits").kill()
    response = fragile.http.post(ADD, params={"key": "waits", "timeout": "0.2"})

    assert (response.status_code, response.json()["type"]) == (503, "urn:engram:unavailable")
    assert f"is logged at {fragile.partition_of('waits')}:" in response.json()["detail"]
    assert response.headers["retry-after"] == "1"


def test_a_query_without_an_owner_is_503(fragile: RunningApp):
    """A query that nobody answers in time is unavailable, and no old answer is made up."""
    fragile.shard_of("waits").kill()
    response = fragile.http.get(VALUE, params={"key": "waits", "timeout": "0.2"})

    assert (response.status_code, response.json()["type"]) == (503, "urn:engram:unavailable")


def test_the_other_shard_is_not_touched(fragile: RunningApp):
    """While one shard is away the other's keys are served."""
    key = fragile.key_in(0)
    other = fragile.key_in(1)
    fragile.shard_of(key).kill()

    assert fragile.http.post(ADD, params={"key": other}).json()["reply"] == 1


def test_a_client_gives_up_when_nobody_takes_over(fragile: RunningApp):
    """After its patience the client raises `Unavailable` with what it last heard."""
    fragile.shard_of("given-up").kill()

    async def talk() -> None:
        async with fragile.client(timeout=0.1, patience=0.3) as client:
            with pytest.raises(Unavailable, match="will be handled"):
                await client.send("given-up", Add())

    asyncio.run(talk())
