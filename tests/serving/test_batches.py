"""Many commands in one request: each stands for itself, and has its reply or its problem in its place."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engram import Denied, Misuse, Quarantined, Rejected, Unavailable
from engram.serving.batch import MAX_COMMANDS

from sample_apps.social import app as social_app
from sample_apps.social.commands import Publish, Register
from tests.serving.counter import Add, Fail, Value
from tests.serving.running import RunningApp
from tests.serving.tokens import access, bearer, static

BATCH = "/api/counters/commands"


def _add(key: str, by: Any = 1, **more: Any) -> dict[str, Any]:
    return {"command": "add", "key": key, "body": {"by": by}, **more}


def _statuses(replies: list[dict[str, Any]]) -> list[int]:
    return [each["problem"]["status"] if "problem" in each else 200 for each in replies]


def _value(running: RunningApp, key: str) -> int:
    path = "/api/counters/counter/queries/value"
    return int(running.http.get(path, params={"key": key}).json()["answer"])


def test_each_command_has_its_reply_and_position_in_its_place(counters: RunningApp):
    """Commands of one entity are handled in their order; the token covers all of them."""
    response = counters.http.post(BATCH, json=[_add("b1", 1), _add("b2", 5), _add("b1", 2), _add("b1", 3)])

    replies = response.json()["replies"]
    assert response.status_code == 200
    assert [each["reply"] for each in replies] == [1, 5, 3, 6]
    assert len({each["position"] for each in replies}) == 4
    token = response.headers["engram-token"]
    asked = {"key": "b1", "at_least": token}
    assert counters.http.get("/api/counters/counter/queries/value", params=asked).json()["answer"] == 6


def test_what_is_wrong_with_one_is_told_in_its_place_and_the_others_stand(counters: RunningApp):
    """Fields, names, keys, forms, a rejection and a failure among good ones: the good ones are handled."""
    batch = [
        _add("batch-mixed"),
        _add("batch-mixed", "three"),
        {"command": "ad", "key": "batch-mixed", "body": {}},
        _add(""),
        {"command": "add", "key": "batch-mixed", "bdy": {}},
        {"key": "batch-mixed"},
        7,
        _add("batch-mixed", -1),
        {"command": "fail", "key": "batch-mixed"},
        _add("batch-mixed", 1, idempotency_key="no spaces"),
        {"command": "add", "key": "batch-mixed"},
    ]
    replies = counters.http.post(BATCH, json=batch).json()["replies"]

    problems = [each.get("problem", {}) for each in replies]
    assert _statuses(replies) == [200, 422, 404, 422, 422, 422, 422, 409, 500, 422, 200]
    assert problems[1]["errors"][0]["path"] == "by"
    assert (problems[2]["type"], problems[2]["near"]) == ("urn:engram:unknown_command", ["add"])
    assert "bdy" in problems[4]["detail"]
    assert (problems[7]["code"], problems[8]["type"]) == ("negative", "urn:engram:quarantined")
    assert "position" in problems[7]
    assert (replies[0]["reply"], replies[-1]["reply"]) == (1, 2)
    assert _value(counters, "batch-mixed") == 2


def test_what_could_not_be_read_back_is_not_logged(counters: RunningApp):
    """Alone or among others: a command that its own validator refuses once it was written would stop the partition."""
    ends = [counters.log.end(partition) for partition in range(counters.log.partitions)]
    alone = counters.http.post("/api/counters/counter/commands/mark", params={"key": "m"}, json={"text": "12345"})
    refused, good = counters.http.post(
        BATCH, json=[{"command": "mark", "key": "m", "body": {"text": text}} for text in ("12345", "1234")]
    ).json()["replies"]

    for problem in (alone.json(), refused["problem"]):
        assert (problem["status"], problem["type"]) == (422, "urn:engram:misuse")
        assert "does not survive being logged" in problem["detail"]
        assert "too long" in problem["detail"]
    assert good["reply"] is None
    assert sum(counters.log.end(partition) for partition in range(counters.log.partitions)) == sum(ends) + 1


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"[]", 422, "There are 0 commands"),
        (b"[" + b",".join([b'{"command":"add","key":"k"}'] * (MAX_COMMANDS + 1)) + b"]", 422, "1,001 commands"),
        (b'{"command":"add"}', 422, "no array"),
        (b"[{]", 400, "not JSON"),
        (b"", 400, "not JSON"),
        (b"[" * 100_000, 400, "not JSON"),
        (b"[" + b" " * 1024 * 1024 + b"]", 413, "1,048,576"),
    ],
)
def test_a_request_that_is_no_batch_is_refused_as_a_whole(counters: RunningApp, body: bytes, status: int, said: str):
    """None, too many, no array, no JSON, too large: one problem, and nothing is logged."""
    ends = [counters.log.end(p) for p in range(4)]
    response = counters.http.post(BATCH, content=body)

    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json")
    assert said in response.json()["detail"]
    assert [counters.log.end(p) for p in range(4)] == ends


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"params": {"wait": "effects"}}, "wait=reply or wait=log"),
        ({"params": {"key": "k"}}, "Unknown parameter key"),
        ({"headers": {"Idempotency-Key": "k"}}, "in its entry"),
        ({"headers": {"Engram-Session": "s"}}, "go together"),
    ],
)
def test_what_is_not_for_batches_is_said(counters: RunningApp, how: dict[str, Any], said: str):
    """A key, one idempotency key for all, waiting for effects, half an id: 422."""
    response = counters.http.post(BATCH, json=[_add("batch-k")], **how)

    assert response.status_code == 422
    assert said in response.json()["detail"]


def test_a_batch_is_sent_with_post(counters: RunningApp):
    """405 for other methods."""
    response = counters.http.get(BATCH)

    assert (response.status_code, response.headers["allow"]) == (405, "POST")


def test_a_batch_that_only_waits_for_the_log_has_positions(counters: RunningApp):
    """202, and problems where there are any."""
    response = counters.http.post(BATCH, params={"wait": "log"}, json=[_add("batch-logged"), _add("")])

    logged, bad = response.json()["replies"]
    assert (response.status_code, set(logged), bad["problem"]["status"]) == (202, {"position"}, 422)


def test_the_same_batch_again_gives_the_first_replies_again(counters: RunningApp):
    """By the number of the session; whatever is new in a later batch of the session is handled."""
    headers = {"Engram-Session": "batches", "Engram-Sequence": "7"}
    batch = [_add("batch-again"), _add("batch-again"), _add("batch-again", -1)]
    first, second = (counters.http.post(BATCH, json=batch, headers=headers).json()["replies"] for _ in range(2))
    later = counters.http.post(BATCH, json=batch, headers={**headers, "Engram-Sequence": "8"}).json()["replies"]

    assert [each.get("reply") for each in first] == [each.get("reply") for each in second] == [1, 2, None]
    assert _statuses(first) == _statuses(second) == [200, 200, 409]
    assert [each.get("reply") for each in later] == [3, 4, None]


def test_an_idempotency_key_counts_in_a_batch_and_alone(counters: RunningApp):
    """The same key gives the first reply, wherever it comes from."""
    path = "/api/counters/counter/commands/add"
    alone = counters.http.post(path, params={"key": "batch-keyed"}, json={"by": 4}, headers={"Idempotency-Key": "one"})
    batch = [_add("batch-keyed", 4, idempotency_key="one"), _add("batch-keyed", 2, idempotency_key="two")]
    replies = counters.http.post(BATCH, json=batch).json()["replies"]

    assert alone.json()["reply"] == 4
    assert [each["reply"] for each in replies] == [4, 6]


# The typed client


def test_the_client_gives_a_reply_or_an_exception_for_each(counters: RunningApp):
    """In the order of the commands, of the types that `send` returns and raises."""

    async def talk() -> tuple[list[Any], int]:
        async with counters.client() as client:
            replies = await client.send_many(
                [("many", Add(by=2)), ("many", Add(by=-2)), ("many", Fail()), ("", Add()), ("many", Add(by=3))]
            )
            return replies, await client.ask("many", Value())

    replies, value = asyncio.run(talk())

    assert (replies[0], replies[4], value) == (2, 5, 5)
    assert isinstance(replies[1], Rejected)
    assert replies[1].code == "negative"
    assert isinstance(replies[2], Quarantined)
    assert isinstance(replies[3], Misuse)


def test_a_thousand_commands_are_one_request(counters: RunningApp):
    """As many as there may be; one more raises `Misuse`, and so do none."""

    async def talk() -> list[Any]:
        async with counters.client() as client:
            with pytest.raises(Misuse, match="1,001 commands"):
                await client.send_many([("thousand", Add())] * 1001)
            with pytest.raises(Misuse, match="There are 0"):
                await client.send_many([])
            return await client.send_many([("thousand", Add())] * 1000)

    assert asyncio.run(talk()) == list(range(1, 1001))


async def _come_back(running: RunningApp) -> None:
    """Starts the first shard again when the log has a batch twice: the first attempt came back without replies."""
    begin = running.log.end(0)
    async with asyncio.timeout(20):
        while running.log.end(0) < begin + 2:  # noqa: ASYNC110 - of a log in a file nobody tells
            await asyncio.sleep(0.01)
    running.start_shard(0, [0, 2])


def test_a_batch_whose_shard_is_killed_takes_effect_once(fragile: RunningApp):
    """The client sends it again with the same ids until the shard is back; both shards' commands count once."""
    keys = [fragile.key_in(partition) for partition in range(4)]

    async def talk() -> tuple[list[Any], list[int]]:
        async with fragile.client(timeout=0.3) as client:
            fragile.shards[0].kill()
            batch = [(key, Add()) for key in keys for _ in range(5)]
            _, replies = await asyncio.gather(_come_back(fragile), client.send_many(batch))
            return replies, [await client.ask(key, Value()) for key in keys]

    replies, values = asyncio.run(talk())

    assert (replies, values) == ([1, 2, 3, 4, 5] * 4, [5] * 4)


def test_without_hope_what_is_known_is_told(fragile: RunningApp):
    """After the client's patience, replies are there, and `Unavailable` in the places of those that are not known."""
    keys = [fragile.key_in(partition) for partition in range(4)]

    async def talk() -> list[Any]:
        async with fragile.client(timeout=0.2, patience=0.1) as client:
            fragile.shards[0].kill()
            return await client.send_many([(key, Add()) for key in keys])

    replies = asyncio.run(talk())

    assert [replies[1], replies[3]] == [1, 1]
    assert all(isinstance(replies[place], Unavailable) for place in (0, 2))


# Who may


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    limits = {"requests_per_second": 0.001, "burst": 4}
    folder: Path = tmp_path_factory.mktemp("closed")
    with RunningApp(social_app, folder, shards=1, partitions=1, access=access(limits=limits)) as running:
        yield running


def test_each_command_is_checked_for_who_sends_it(closed: RunningApp):
    """What one may not is `Denied` in its place; what they may is handled. Anonymous ones get 401 in the places."""

    async def talk() -> list[Any]:
        async with closed.client(token=static("ada")) as ada:
            return await ada.send_many([("ada", Register(name="Ada")), ("bob", Publish(text="not me"))])

    replies = asyncio.run(talk())
    entry = {"command": "publish", "key": "ada", "body": {"text": "x"}}
    anonymous = closed.http.post("/api/social/commands", json=[entry])

    assert replies[0] is None
    assert type(replies[1]) is Denied
    assert (anonymous.status_code, _statuses(anonymous.json()["replies"])) == (200, [401])


def test_a_batch_counts_as_so_many_requests(closed: RunningApp):
    """It is let in when there is room for one; then the next waits until all of them are paid."""
    headers, path = bearer(static("bob")), "/api/social/commands"
    batch = [{"command": "publish", "key": "bob", "body": {"text": "x"}}] * 50
    first = closed.http.post(path, json=batch, headers=headers)
    second = closed.http.post(path, json=batch[:1], headers=headers)

    assert (first.status_code, second.status_code) == (200, 429)
    assert int(second.headers["retry-after"]) > 40_000
