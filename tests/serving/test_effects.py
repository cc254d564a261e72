"""`wait=effects`: the reply comes when everything that a command has led to is handled, in whichever partition."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import httpx
import pytest
from engram import Client, Rejected, Token, Unsettled

from sample_apps.social.commands import Publish, Register
from sample_apps.social.rules import BanWord
from tests.serving.bounds import token_of
from tests.serving.running import SECONDS, RunningApp
from tests.shard.dominoes import Fall, Fallen, FallLater, app

FALL = "/api/dominoes/domino/commands/fall"
FALLEN = "/api/dominoes/domino/queries/fallen"


@pytest.fixture(scope="module")
def dominoes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    """Dominoes in four partitions, for all tests that leave the shards alone."""
    with RunningApp(app, tmp_path_factory.mktemp("dominoes")) as running:
        yield running


@pytest.fixture
def fragile(tmp_path: Path) -> Iterator[RunningApp]:
    """Dominoes for one test that does harm to them."""
    with RunningApp(app, tmp_path) as running:
        yield running


def key_in(running: RunningApp, partition: int, name: str) -> str:
    return next(k for k in (f"{name}{n}" for n in range(10_000)) if running.partition_of(k) == partition)


def fall(running: RunningApp, key: str, body: dict[str, list[str]], **parameters: str) -> httpx.Response:
    return running.http.post(FALL, params={"key": key, "wait": "effects", **parameters}, json=body)


def fallen(running: RunningApp, key: str, token: Token) -> int:
    answer: int = running.http.get(FALLEN, params={"key": key, "at_least": str(token)}).json()["answer"]
    return answer


def test_a_chain_through_all_partitions(dominoes: RunningApp):
    """Three messages deep: the token covers all four partitions, and reads with it see the last effect."""
    keys = [key_in(dominoes, partition, "chain") for partition in range(4)]
    response = fall(dominoes, keys[0], {"onto": [keys[1]], "then": [keys[2], keys[3]]})
    token = token_of(response)

    assert (response.status_code, response.json()["reply"]) == (200, 1)
    assert response.json()["token"] == str(token)
    assert sorted(token.offsets) == [0, 1, 2, 3]
    assert [fallen(dominoes, key, token) for key in keys] == [1, 1, 1, 1]


def test_a_fan_out_over_all_partitions_that_comes_together_again(dominoes: RunningApp):
    """Two hundred messages to everywhere, each of which leads to one more for the same domino."""
    start, end = key_in(dominoes, 0, "spread"), key_in(dominoes, 3, "gather")
    middle = [f"middle{number}" for number in range(200)]
    token = token_of(fall(dominoes, start, {"onto": middle, "then": [end]}, timeout="60"))

    assert sorted(token.offsets) == [0, 1, 2, 3]
    assert fallen(dominoes, end, token) == 200
    assert {fallen(dominoes, key, token) for key in middle[:20]} == {1}


def test_a_command_without_effects_is_there_at_once(dominoes: RunningApp):
    """Nothing was sent, so nothing is waited for; the token is that of the reply."""
    token = token_of(fall(dominoes, "alone", {}))

    assert list(token.offsets) == [dominoes.partition_of("alone")]


def test_a_rejected_command_has_no_effects(dominoes: RunningApp):
    """It is 409 as always."""
    response = fall(dominoes, "stubborn", {"onto": ["stubborn"]})

    assert (response.status_code, response.json()["code"]) == (409, "onto_itself")


def test_timers_are_not_waited_for(dominoes: RunningApp):
    """What is to happen in an hour does not keep the reply."""
    began = time.monotonic()

    async def talk() -> None:
        async with dominoes.client() as client:
            await client.send("later", FallLater(), wait="effects")

    asyncio.run(talk())

    assert time.monotonic() - began < SECONDS


def test_a_broadcast_is_in_force_everywhere(social: RunningApp):
    """After its effects, a user of any partition is refused at once, whoever asks."""
    users = [key_in(social, partition, "hushed") for partition in range(4)]

    async def talk() -> list[str]:
        codes = []
        async with social.client() as one, social.client() as other:
            for user in users:
                await one.send(user, Register(name="Hush"))
            await one.broadcast(BanWord(word="gibberish"), wait="effects")
            for user in users:
                with pytest.raises(Rejected) as rejected:
                    await other.send(user, Publish(text="such gibberish"))
                codes.append(rejected.value.code)
        return codes

    assert asyncio.run(talk()) == ["banned_word"] * 4


def test_generated_falls_are_seen_by_whoever_has_the_token(dominoes: RunningApp):
    """Many chains at once, of random length and width: with the token of its reply, each read sees all of its falls."""
    random = Random(7)

    async def one(client: Client, number: int) -> None:
        names = [f"generated{number}-{place}" for place in range(6)]
        onto, then = names[1 : random.randint(2, 3)], names[3 : random.randint(3, 6)]
        await client.send(names[0], Fall(onto=tuple(onto), then=tuple(then)), wait="effects")
        token = client.token
        async with dominoes.client() as other:
            for name in onto:
                assert await other.ask(name, Fallen(), at_least=token) == 1
            for name in then:
                assert await other.ask(name, Fallen(), at_least=token) == len(onto)

    async def talk() -> None:
        async with dominoes.client(timeout=60) as client:
            await asyncio.gather(*(one(client, number) for number in range(40)))

    asyncio.run(talk())


# What goes wrong


def in_background(call: Callable[[], httpx.Response]) -> tuple[threading.Thread, list[httpx.Response]]:
    found: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    return thread, found


def wait_for_record(running: RunningApp, partition: int, end: int) -> None:
    deadline = time.monotonic() + SECONDS
    while running.log.end(partition) == end:
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)


def test_a_shard_that_is_killed_on_the_way(fragile: RunningApp):
    """Its successor replays what it had handled, and the wait goes on to the true end of the chain."""
    keys = [fragile.key_in(partition) for partition in range(4)]
    lost = fragile.shard_of(keys[1])
    lost.kill()
    end = fragile.log.end(1)
    body = {"onto": [keys[1]], "then": [keys[2], keys[3]]}
    thread, found = in_background(lambda: fall(fragile, keys[0], body, timeout="30"))
    wait_for_record(fragile, 1, end)
    assert not found
    fragile.start_shard(lost.number, lost.partitions)
    thread.join(SECONDS)

    (response,) = found
    assert response.status_code == 200
    assert fallen(fragile, keys[3], token_of(response)) == 1


def test_a_shard_that_does_not_come_back_is_504_in_time(fragile: RunningApp):
    """Never a false success: the reply and the position are told, and that the effects are not known."""
    keys = [fragile.key_in(partition) for partition in range(4)]
    fragile.shard_of(keys[1]).kill()
    began = time.monotonic()
    response = fall(fragile, keys[0], {"onto": [keys[1]]}, timeout="0.5")
    problem = response.json()

    assert (response.status_code, problem["type"]) == (504, "urn:engram:unsettled")
    assert (problem["reply"], problem["position"][:2]) == (1, "0:")
    assert "was handled at 0:" in problem["detail"]
    assert "Partition 1 has not answered for its part" in problem["detail"]
    assert list(token_of(response).offsets) == [0]
    assert time.monotonic() - began < 5


def test_the_same_idempotency_key_waits_for_the_first_effects(dominoes: RunningApp):
    """Once more with the same key: the first reply again, and a token that covers what it led to, once."""
    keys = [key_in(dominoes, partition, "again") for partition in range(3)]
    how = {"params": {"key": keys[0], "wait": "effects"}, "headers": {"Idempotency-Key": "fall-once"}}
    body = {"onto": [keys[1]], "then": [keys[2]]}
    first, again = (dominoes.http.post(FALL, json=body, **how) for _ in range(2))

    assert (first.status_code, again.status_code) == (200, 200)
    assert (first.json()["reply"], again.json()["reply"]) == (1, 1)
    assert sorted(token_of(again).offsets) == [0, 1, 2]
    assert [fallen(dominoes, key, token_of(again)) for key in keys] == [1, 1, 1]


def test_what_nobody_remembers_is_504_at_once(fragile: RunningApp):
    """A command that is sent again after a restart has its reply, but its effects are forgotten."""
    keys = [fragile.key_in(partition) for partition in range(2)]
    again = {"Engram-Session": "same", "Engram-Sequence": "1"}
    body = {"onto": [keys[1]]}
    first = fragile.http.post(FALL, params={"key": keys[0], "wait": "effects"}, json=body, headers=again)
    repeated = fragile.http.post(FALL, params={"key": keys[0], "wait": "effects"}, json=body, headers=again)
    fragile.on_loop(fragile.registry.stop_shards(clean=True))
    fragile.registry._stop = []  # not for good
    for shard in list(fragile.shards):
        shard.join()
        fragile.start_shard(shard.number, shard.partitions)
    forgotten = fragile.http.post(
        FALL, params={"key": keys[0], "wait": "effects", "timeout": "20"}, json=body, headers=again
    )

    assert (first.status_code, repeated.status_code, forgotten.status_code) == (200, 200, 504)
    assert token_of(repeated).offset(1) is not None, "the first effects were waited for again"
    assert forgotten.json()["reply"] == 1
    assert "does not remember" in forgotten.json()["detail"]


def test_the_client_raises_unsettled(fragile: RunningApp):
    """The command is not sent again, because it was handled."""
    keys = [fragile.key_in(partition) for partition in range(2)]
    fragile.shard_of(keys[1]).kill()

    async def talk() -> int:
        async with fragile.client(timeout=0.5) as client:
            with pytest.raises(Unsettled, match="was handled at 0:"):
                await client.send(keys[0], Fall(onto=(keys[1],)), wait="effects")
            return await client.ask(keys[0], Fallen())

    assert asyncio.run(talk()) == 1
