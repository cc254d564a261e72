"""Tokens over HTTP: every reply and answer has one, one covers many writes, a wrong one is refused with a reason."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from engram import Ahead, Behind, Foreign, Position, Token
from engram.errors import Gap

from tests.serving.bounds import BROWSER, cookie_of, token_of
from tests.serving.counter import Add, Value, app
from tests.serving.running import RunningApp

ADD = "/api/counters/counter/commands/add"
FAIL = "/api/counters/counter/commands/fail"
VALUE = "/api/counters/counter/queries/value"


@pytest.fixture
def browser(counters: RunningApp) -> Iterator[httpx.Client]:
    """A client that keeps cookies, and says of itself what a browser says."""
    with httpx.Client(base_url=counters.url, headers=BROWSER, trust_env=False, timeout=20) as client:
        yield client


# Every reply and answer


def test_replies_rejections_failures_and_answers_carry_a_token(counters: RunningApp):
    """It covers the position that is told beside it."""
    sent = counters.http.post(ADD, params={"key": "carried"})
    logged = counters.http.post(ADD, params={"key": "carried", "wait": "log"})
    rejected = counters.http.post(ADD, params={"key": "carried"}, json={"by": -1})
    failed = counters.http.post(FAIL, params={"key": "carried"})
    asked = counters.http.get(VALUE, params={"key": "carried"})

    for response in (sent, logged, rejected, failed, asked):
        position = Position.parse(response.headers["engram-position"])
        assert token_of(response) == Token.of("counters", 4, [position])


def test_a_retried_command_carries_a_token(counters: RunningApp):
    """It is a new command, at a position of its own."""
    failed = counters.http.post(FAIL, params={"key": "tried-twice"}).headers["engram-position"]
    retried = counters.http.post(f"/api/counters/quarantine/{failed}/retry")

    assert token_of(retried) == Token.of("counters", 4, [Position.parse(retried.json()["position"])])


def test_one_token_covers_writes_to_all_partitions(counters: RunningApp):
    """Merged, the tokens of commands that were only logged give read-your-writes for each of them."""
    keys = [f"covered-{number}" for number in range(12)]
    merged = Token("counters", 4)
    for key in keys:
        merged |= token_of(counters.http.post(ADD, params={"key": key, "wait": "log"}))
    by_header = [
        counters.http.get(VALUE, params={"key": key}, headers={"Engram-At-Least": str(merged)}) for key in keys
    ]
    by_parameter = [counters.http.get(VALUE, params={"key": key, "at_least": str(merged)}) for key in keys]

    assert sorted(merged.offsets) == [0, 1, 2, 3]
    assert [response.json()["answer"] for response in by_header + by_parameter] == [1] * 24
    for response in by_header:
        (partition,) = token_of(response).offsets
        assert token_of(response).offset(partition) >= merged.offset(partition)


def test_tokens_and_positions_may_be_named_together(counters: RunningApp):
    """With commas between them."""
    sent = counters.http.post(ADD, params={"key": "mixed"})
    bound = f"{sent.headers['engram-token']}, {sent.json()['position']}"

    assert counters.http.get(VALUE, params={"key": "mixed", "at_least": bound}).json()["answer"] == 1


# What does not come in time


@pytest.mark.parametrize("name", ["at_least", "Engram-At-Least"])
def test_a_record_that_is_not_handled_in_time_is_504_with_the_lag(fragile: RunningApp, name: str):
    """Where the state is and what was asked for are told when the time is over, and not long after."""
    partition = fragile.partition_of("late")
    shard = fragile.shard_of("late")
    shard.log.unreadable = True
    end = fragile.log.end(partition)
    for _ in range(3):
        sent = fragile.http.post(ADD, params={"key": "late", "wait": "log"})
    parameters, headers = {"key": "late", "timeout": "0.3"}, {}
    (parameters if name == "at_least" else headers)[name] = sent.headers["engram-token"]
    began = time.monotonic()
    response = fragile.http.get(VALUE, params=parameters, headers=headers)
    took = time.monotonic() - began
    shard.log.unreadable = False
    after = fragile.http.get(VALUE, params={"key": "late", "at_least": sent.headers["engram-token"]})

    problem = response.json()
    assert (response.status_code, problem["type"]) == (504, "urn:engram:behind")
    assert (problem["partition"], problem["at"], problem["asked_for"]) == (partition, end - 1, end + 2)
    assert f"is at record {end - 1}, and record {end + 2} was asked for: 3 to go" in problem["detail"]
    assert 0.3 <= took < 3
    assert after.json()["answer"] == 3


def test_the_client_raises_behind_at_once(fragile: RunningApp):
    """A bound that cannot be met in the client's time is not tried again; the error has the numbers."""
    shard = fragile.shard_of("behind")
    shard.log.unreadable = True

    async def talk() -> tuple[Position, Gap | None]:
        async with fragile.client(timeout=0.2) as client:
            position = await client.submit("behind", Add())
            with pytest.raises(Behind, match="1 to go") as behind:
                await client.ask("behind", Value())
            return position, behind.value.gap

    position, gap = asyncio.run(talk())
    shard.log.unreadable = False

    assert gap == Gap(position.partition, position.offset - 1, position.offset)


# From the future


@pytest.mark.parametrize("form", ["token", "position"])
def test_what_the_log_does_not_have_is_409_at_once(counters: RunningApp, form: str):
    """Nobody waits for a record that may never come, or come with something else in it."""
    partition = counters.partition_of("future")
    position = Position(partition, 999_999, 0)
    bound = str(position if form == "position" else Token.of("counters", 4, [position]))
    began = time.monotonic()
    response = counters.http.get(VALUE, params={"key": "future", "at_least": bound, "timeout": "30"})
    problem = response.json()

    assert (response.status_code, problem["type"]) == (409, "urn:engram:ahead")
    assert (problem["partition"], problem["asked_for"]) == (partition, 999_999)
    assert problem["at"] == counters.log.end(partition) - 1
    assert f"the log ends with {problem['at']}: it was restored from an older backup" in problem["detail"]
    assert time.monotonic() - began < 10


def test_a_log_that_was_restored_from_a_backup(tmp_path: Path):
    """A token of what was lost is refused with both positions, by the client too, and does no harm elsewhere."""
    live, backup = tmp_path / "live", tmp_path / "backup"
    with RunningApp(app, live, shards=1, partitions=2) as running:
        running.http.post(ADD, params={"key": "saved"})
    shutil.copytree(live, backup)
    with RunningApp(app, live, shards=1, partitions=2) as running:
        for _ in range(9):
            lost = running.http.post(ADD, params={"key": "saved"}).headers["engram-token"]
    shutil.rmtree(live)
    shutil.copytree(backup, live)

    async def talk(running: RunningApp) -> Gap | None:
        async with running.client() as client:
            with pytest.raises(Ahead, match="restored from an older backup") as ahead:
                await client.ask("saved", Value(), at_least=Token.parse(lost))
            return ahead.value.gap

    with RunningApp(app, live, shards=1, partitions=2) as running:
        partition = running.partition_of("saved")
        refused = running.http.get(VALUE, params={"key": "saved", "at_least": lost})
        elsewhere = running.http.get(VALUE, params={"key": running.key_in(1 - partition), "at_least": lost})
        gap = asyncio.run(talk(running))
        end = running.log.end(partition)

    assert (refused.status_code, elsewhere.status_code) == (409, 200)
    assert gap == Gap(partition, end - 1, Token.parse(lost).offset(partition))


# Not ours


def test_a_token_of_another_app_is_400(counters: RunningApp):
    """So is one of the same app with other partitions; both sides are named."""
    for token in (Token("bakery", 4, {0: 1}), Token("counters", 8, {0: 1})):
        response = counters.http.get(VALUE, params={"key": "any", "at_least": str(token)})
        assert (response.status_code, response.json()["type"]) == (400, "urn:engram:foreign")
        assert f"of app {token.app} with {token.partitions} partitions" in response.json()["detail"]
        assert "this is counters with 4" in response.json()["detail"]


@pytest.mark.parametrize("where", ["at_least", "Engram-At-Least"])
def test_a_token_that_was_tampered_with_is_400(counters: RunningApp, where: str):
    """Whichever character is changed."""
    token = counters.http.post(ADD, params={"key": "tampered"}).headers["engram-token"]
    for place in range(len(token)):
        spoilt = token[:place] + ("1" if token[place] != "1" else "2") + token[place + 1 :]
        parameters, headers = {"key": "tampered"}, {}
        (parameters if where == "at_least" else headers)[where] = spoilt
        response = counters.http.get(VALUE, params=parameters, headers=headers)
        assert (response.status_code, response.json()["type"]) == (400, "urn:engram:foreign"), spoilt


def test_the_client_raises_foreign(counters: RunningApp):
    """What it was given by its caller is not what this app gave out."""

    async def talk() -> None:
        async with counters.client() as client:
            with pytest.raises(Foreign, match="of app bakery"):
                await client.ask("any", Value(), at_least=Token("bakery", 4, {0: 1}))

    asyncio.run(talk())


# Clients


def test_a_clients_token_gives_another_what_it_has_seen(counters: RunningApp):
    """It grows with every command and answer; whoever asks with it sees all of that."""
    keys = [f"handed-over-{number}" for number in range(8)]

    async def talk() -> list[int]:
        async with counters.client() as one, counters.client() as other:
            assert one.token is None
            for key in keys:
                await one.submit(key, Add())
            assert one.token is not None
            return [await other.ask(key, Value(), at_least=one.token) for key in keys]

    assert asyncio.run(talk()) == [1] * 8


# Browsers


def test_a_browser_reads_its_writes_without_a_word(browser: httpx.Client):
    """Its cookie holds what it has seen of all partitions, and is used when nothing else is said."""
    keys = [f"browsed-{number}" for number in range(12)]
    for key in keys:
        browser.post(ADD, params={"key": key, "wait": "log"})
    seen = [browser.get(VALUE, params={"key": key}).json()["answer"] for key in keys]

    assert seen == [1] * 12
    assert sorted(cookie_of(browser).offsets) == [0, 1, 2, 3]


def test_the_cookie_is_for_this_app_and_no_script(browser: httpx.Client):
    """Not sent from other sites, not readable by scripts, and only for the app's own paths."""
    response = browser.post(ADD, params={"key": "attributes"})
    attributes = {part.strip().lower() for part in response.headers["set-cookie"].split(";")[1:]}

    assert attributes == {"httponly", "path=/api/counters", "samesite=strict"}


def test_who_is_no_browser_gets_no_cookie(counters: RunningApp):
    """A client that carries its token itself is not bothered."""
    assert "set-cookie" not in counters.http.post(ADD, params={"key": "no-browser"}).headers


def test_the_cookie_is_honoured(fragile: RunningApp):
    """A browser that has written what is not handled yet gets no old answer."""
    shard = fragile.shard_of("honoured")
    shard.log.unreadable = True
    with httpx.Client(base_url=fragile.url, headers=BROWSER, trust_env=False, timeout=20) as browser:
        browser.post(ADD, params={"key": "honoured", "wait": "log"})
        behind = browser.get(VALUE, params={"key": "honoured", "timeout": "0.2"})
        explicit = browser.get(VALUE, params={"key": "honoured", "timeout": "0.2", "at_least": ""})
        shard.log.unreadable = False
        after = browser.get(VALUE, params={"key": "honoured"})

    assert (behind.status_code, explicit.json()["answer"], after.json()["answer"]) == (504, 0, 1)


@pytest.mark.parametrize(
    "stale",
    [
        "rubbish",
        "",
        str(Token("bakery", 4, {0: 1})),
        str(Token("counters", 8, {7: 1})),
        str(Token("counters", 4, dict.fromkeys(range(4), 999_999))),
    ],
)
def test_a_stale_cookie_is_replaced(browser: httpx.Client, counters: RunningApp, stale: str):
    """Whatever it holds, requests are served, and afterwards it is one of ours that asks for nothing impossible."""
    browser.cookies.set("engram-token", stale, domain="127.0.0.1", path="/api/counters")
    asked = browser.get(VALUE, params={"key": "stale"})

    assert (asked.status_code, asked.json()["answer"]) == (200, 0)
    assert cookie_of(browser) == token_of(asked)
