"""Queries over HTTP: answered from live state, with the position, and as fresh as was asked for."""

from __future__ import annotations

import asyncio

import pytest
from engram import Position, Rejected, Token

from sample_apps.social.commands import Publish, Register
from sample_apps.social.queries import Posts, Profile
from tests.serving.counter import Add, Value
from tests.serving.running import RunningApp

ADD = "/api/counters/counter/commands/add"
VALUE = "/api/counters/counter/queries/value"


def test_an_answer_carries_its_position(counters: RunningApp):
    """Body and header say which command is the last that the answer includes."""
    sent = counters.http.post(ADD, params={"key": "asked"}).json()["position"]
    response = counters.http.get(VALUE, params={"key": "asked", "at_least": sent})

    assert (response.status_code, response.json()["answer"]) == (200, 1)
    assert response.json()["position"] == response.headers["engram-position"]
    assert Position.parse(response.json()["position"]) >= Position.parse(sent)


def test_a_query_takes_its_fields_from_parameters_or_from_a_body(counters: RunningApp):
    """GET with parameters and POST with JSON ask the same."""
    counters.http.post(ADD, params={"key": "both"}, json={"by": 4})
    by_get = counters.http.get(VALUE, params={"key": "both", "times": "3"})
    by_post = counters.http.post(VALUE, params={"key": "both"}, json={"times": 3})

    assert (by_get.json()["answer"], by_post.json()["answer"]) == (12, 12)


def test_at_least_may_name_positions_of_any_partitions(counters: RunningApp):
    """A list of positions is taken as one: only that of the key's own partition counts; a header does as well."""
    sent = [counters.http.post(ADD, params={"key": f"many{number}"}).json()["position"] for number in range(8)]
    asked = {"key": "many0"}
    by_parameter = counters.http.get(VALUE, params={**asked, "at_least": ",".join(sent)})
    by_header = counters.http.get(VALUE, params=asked, headers={"Engram-At-Least": ", ".join(sent)})

    assert (by_parameter.json()["answer"], by_header.json()["answer"]) == (1, 1)


def test_a_rejected_query_is_409_with_its_code(social: RunningApp):
    """What a query refuses comes back like what a command refuses."""
    response = social.http.get("/api/social/user/queries/profile", params={"key": "nobody-at-all"})

    assert (response.status_code, response.json()["code"]) == (409, "unknown_user")


def test_a_query_that_fails_is_500_and_the_shard_goes_on(counters: RunningApp):
    """An author's mistake in a query is told by its type, and the next query is answered."""
    response = counters.http.get("/api/counters/counter/queries/break", params={"key": "broken"})
    after = counters.http.get(VALUE, params={"key": "broken"})

    assert response.status_code == 500
    assert "ZeroDivisionError" in response.json()["detail"]
    assert after.json()["answer"] == 0


def test_a_query_that_changes_its_entity_is_refused_and_undone(counters: RunningApp):
    """Queries only read: one that writes gets 422 and has changed nothing."""
    response = counters.http.get("/api/counters/counter/queries/meddle", params={"key": "meddled"})
    after = counters.http.get(VALUE, params={"key": "meddled"})

    assert response.status_code == 422
    assert "queries only read" in response.json()["detail"]
    assert after.json()["answer"] == 0


# The typed client


def test_the_client_reads_what_it_has_written(social: RunningApp):
    """Each query of a client includes each command it has submitted before, without a word about positions."""

    async def talk() -> list[int]:
        async with social.client() as client:
            await client.submit("own-writes", Register(name="Ada"))
            seen = []
            for number in range(30):
                await client.submit("own-writes", Publish(text=str(number)))
                seen.append(len(await client.ask("own-writes", Posts(limit=200))))
            return seen

    assert asyncio.run(talk()) == list(range(1, 31))


def test_the_client_never_reads_back_in_time(counters: RunningApp):
    """What a client has seen of a partition, its later queries there include too."""

    async def talk() -> Token:
        async with counters.client() as client:
            await client.send("seen", Add())
            await client.ask("seen", Value())
            assert client.token is not None
            return client.token

    ((partition, offset),) = asyncio.run(talk()).offsets.items()

    assert counters.log.read(partition, offset, limit=1)


def test_the_client_raises_a_querys_rejection(social: RunningApp):
    """A query's refusal has its code at the client."""

    async def talk() -> None:
        async with social.client() as client:
            with pytest.raises(Rejected) as rejected:
                await client.ask("nobody-at-all", Profile())
            assert rejected.value.code == "unknown_user"

    asyncio.run(talk())
