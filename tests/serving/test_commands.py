"""Commands over HTTP: logged before they are acknowledged, handled once, with the reply and the position."""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from datetime import UTC, datetime

import pytest
from engram import Client, Misuse, Position, Quarantined, Rejected, Unavailable
from engram.clock import system_clock

from sample_apps.social.commands import Follow, Publish, Register
from sample_apps.social.queries import Posts, Profile, ProfileCard
from tests.serving.counter import Add, Fail, Value, app
from tests.serving.running import RunningApp

ADD = "/api/counters/counter/commands/add"
VALUE = "/api/counters/counter/queries/value"


def _value(running: RunningApp, key: str) -> int:
    return int(running.http.get(VALUE, params={"key": key}).json()["answer"])


def test_a_command_is_answered_with_its_reply_and_position(counters: RunningApp):
    """Body and header say the same position, and that is where the command is in the log."""
    response = counters.http.post(ADD, params={"key": "plain"}, json={"by": 3})

    position = Position.parse(response.json()["position"])
    assert (response.status_code, response.json()["reply"]) == (200, 3)
    assert response.headers["engram-position"] == str(position)
    assert position.partition == counters.partition_of("plain")
    (record,) = counters.log.read(position.partition, position.offset, limit=1)
    assert b'"keys":["plain"]' in record.payload


def test_an_empty_body_is_a_command_of_defaults(counters: RunningApp):
    """A command whose fields all have defaults needs no body."""
    assert counters.http.post(ADD, params={"key": "defaults"}).json()["reply"] == 1


def test_wait_log_returns_as_soon_as_the_command_is_logged(counters: RunningApp):
    """`wait=log` gets 202 with the position and no reply; the command is handled all the same."""
    response = counters.http.post(ADD, params={"key": "logged", "wait": "log"}, json={"by": 2})

    assert response.status_code == 202
    assert response.json() == {"position": response.headers["engram-position"]}
    reading = {"key": "logged", "at_least": response.json()["position"]}
    assert counters.http.get(VALUE, params=reading).json()["answer"] == 2


def test_the_same_idempotency_key_gives_the_first_reply_again(counters: RunningApp):
    """Sent twice with one `Idempotency-Key`, a command takes effect once and both replies are the first."""
    headers = {"Idempotency-Key": "only-once"}
    replies = [
        counters.http.post(ADD, params={"key": "idempotent"}, json={"by": 5}, headers=headers).json()["reply"]
        for _ in range(2)
    ]

    assert replies == [5, 5]
    assert _value(counters, "idempotent") == 5


def test_an_idempotency_key_for_another_command_is_refused(counters: RunningApp):
    """The same key with another body is 409 `idempotency_key_reused`, and changes nothing."""
    headers = {"Idempotency-Key": "reused"}
    counters.http.post(ADD, params={"key": "reuse"}, json={"by": 1}, headers=headers)
    response = counters.http.post(ADD, params={"key": "reuse"}, json={"by": 2}, headers=headers)

    assert (response.status_code, response.json()["code"]) == (409, "idempotency_key_reused")
    assert _value(counters, "reuse") == 1


def test_the_same_session_and_sequence_give_the_first_reply_again(counters: RunningApp):
    """A client that repeats its last command by number gets what it would have got the first time."""
    headers = {"Engram-Session": "my-session", "Engram-Sequence": "4"}
    replies = [
        counters.http.post(ADD, params={"key": "session"}, json={"by": 7}, headers=headers).json()["reply"]
        for _ in range(3)
    ]

    assert replies == [7, 7, 7]
    assert _value(counters, "session") == 7


def test_a_number_from_before_is_handled_already(counters: RunningApp):
    """A session's number that is below its latest was handled, and its reply is no longer kept."""
    for sequence in ("0", "1"):
        headers = {"Engram-Session": "goes-back", "Engram-Sequence": sequence}
        counters.http.post(ADD, params={"key": "back"}, headers=headers)
    headers = {"Engram-Session": "goes-back", "Engram-Sequence": "0"}
    response = counters.http.post(ADD, params={"key": "back"}, headers=headers)

    assert (response.status_code, response.json()["code"]) == (409, "already_handled")
    assert _value(counters, "back") == 2


def test_a_rejection_is_409_with_code_text_and_position(counters: RunningApp):
    """A handler's refusal is a normal reply: problem+json with its code, and the position that it was decided at."""
    response = counters.http.post(ADD, params={"key": "rejected"}, json={"by": -1})

    problem = response.json()
    assert (response.status_code, problem["type"]) == (409, "urn:engram:rejected")
    assert (problem["code"], problem["detail"]) == ("negative", "-1 is below zero.")
    assert problem["position"] == response.headers["engram-position"]


def test_a_handler_that_fails_is_500_and_leaves_no_trace(counters: RunningApp):
    """Any other exception quarantines the command: its type is told, and the state is as before."""
    counters.http.post(ADD, params={"key": "fails"}, json={"by": 3})
    response = counters.http.post("/api/counters/counter/commands/fail", params={"key": "fails"})

    problem = response.json()
    assert (response.status_code, problem["type"]) == (500, "urn:engram:quarantined")
    assert "ZeroDivisionError" in problem["detail"]
    assert "fire" not in problem["detail"]
    assert _value(counters, "fails") == 3


# The typed client


def test_the_client_gives_replies_and_answers_of_the_declared_types(social: RunningApp):
    """`send` and `ask` return what the command and the query say that they return."""

    async def talk() -> tuple[None, str, ProfileCard]:
        async with social.client() as client:
            registered = await client.send("typed-ada", Register(name="Ada"))
            post = await client.send("typed-ada", Publish(text="hello"))
            return registered, post, await client.ask("typed-ada", Profile())

    before = datetime.fromtimestamp(system_clock() / 1000, UTC)
    registered, post, card = asyncio.run(talk())

    assert registered is None
    assert len(post) == 26
    assert isinstance(card, ProfileCard)
    assert (card.name, card.posts) == ("Ada", 1)
    assert card.since >= before


def test_the_client_raises_what_the_problem_stands_for(counters: RunningApp):
    """`Rejected` with its code and text, `Quarantined`, `Misuse`: the tree of errors crosses HTTP."""

    async def talk() -> None:
        async with counters.client() as client:
            with pytest.raises(Rejected) as rejected:
                await client.send("errors", Add(by=-5))
            assert (rejected.value.code, rejected.value.text) == ("negative", "-5 is below zero.")
            with pytest.raises(Quarantined, match="ZeroDivisionError"):
                await client.send("errors", Fail())
            with pytest.raises(Misuse, match="key is empty"):
                await client.send("", Add())

    asyncio.run(talk())


def test_submit_returns_the_position_of_a_logged_command(counters: RunningApp):
    """A submitted command's position can be asked for in a query of another client."""

    async def talk() -> tuple[Position, int]:
        async with counters.client() as one, counters.client() as other:
            position = await one.submit("submitted", Add(by=4))
            return position, await other.ask("submitted", Value(), at_least=position)

    position, value = asyncio.run(talk())

    assert (position.partition, value) == (counters.partition_of("submitted"), 4)


def test_the_client_passes_an_idempotency_key_on(counters: RunningApp):
    """Two clients that send the same with one key get one reply for one effect."""

    async def talk() -> list[int]:
        async with counters.client() as one, counters.client() as other:
            return [await client.send("passed-on", Add(by=6), idempotency_key="k") for client in (one, other)]

    assert asyncio.run(talk()) == [6, 6]


def test_two_hundred_commands_at_once_take_effect_once_each(counters: RunningApp):
    """Of two hundred concurrent commands to ten counters every reply is a different step of its counter."""
    keys = [f"crowd{number % 10}" for number in range(200)]

    async def talk() -> tuple[list[int], list[int]]:
        async with counters.client() as client:
            replies = await asyncio.gather(*(client.send(key, Add()) for key in keys))
            return replies, [await client.ask(key, Value()) for key in keys[:10]]

    replies, values = asyncio.run(talk())

    assert values == [20] * 10
    assert Tally(replies) == dict.fromkeys(range(1, 21), 10)


def test_many_clients_at_once_take_effect_once_each(social: RunningApp):
    """Twenty clients that all follow the same user are twenty followers."""

    async def live(number: int) -> None:
        async with social.client() as client:
            await client.send(f"fan{number}", Register(name="Fan"))
            await client.send(f"fan{number}", Follow(whom="star"))
            await client.send(f"fan{number}", Publish(text="I follow a star"))

    async def talk() -> ProfileCard:
        async with social.client() as client:
            await client.send("star", Register(name="Star"))
            await asyncio.gather(*map(live, range(20)))
            async with asyncio.timeout(20):
                # Messages between users arrive once, but after the reply: a star's followers gather one by one.
                while (card := await client.ask("star", Profile())).followers < 20:
                    pass
            assert [len(await client.ask(f"fan{number}", Posts())) for number in range(20)] == [1] * 20
            return card

    assert asyncio.run(talk()).followers == 20


def test_nothing_that_listens_is_unavailable_after_the_clients_patience(nobody: str):
    """Without a server the client tries for as long as it was told, and says what it could not reach."""

    async def talk() -> None:
        async with Client(nobody, app, patience=0.2) as client:
            with pytest.raises(Unavailable, match="could not be reached"):
                await client.send("somebody", Add())

    asyncio.run(talk())


def test_a_server_that_is_no_gateway_is_unavailable(stranger: str):
    """An error page that is no problem+json is told as it is."""

    async def talk() -> None:
        async with Client(stranger, app, patience=0) as client:
            with pytest.raises(Unavailable, match="answered 502: <h1>Bad gateway"):
                await client.send("somebody", Add())

    asyncio.run(talk())
