"""How much one may ask for, and what happens when it is too much for all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from engram.serving.limits import Buckets
from hypothesis import given
from hypothesis import strategies as st

from sample_apps.social import app as social
from sample_apps.social.commands import Publish, Register
from tests.serving.running import SECONDS, RunningApp
from tests.serving.tokens import access, bearer, static

POSTS = "/api/social/user/queries/posts"
ADA = {"key": "ada"}


def test_a_bucket_gives_its_burst_and_then_by_its_rate():
    """Two at once, then one every half second; it says how long to wait, and who waited longer has no more than two."""
    now = 0.0
    buckets = Buckets(rate=2, burst=2, clock=lambda: now)
    assert [buckets.take("ada") for _ in range(3)] == [0, 0, 0.5]
    now = 0.25
    assert (buckets.take("ada"), buckets.take("bob")) == (0.25, 0)
    now = 0.5
    assert [buckets.take("ada") for _ in range(2)] == [0, 0.5]
    now = 1000
    assert [buckets.take("ada") for _ in range(3)] == [0, 0, 0.5]


@given(st.lists(st.floats(0, 3), max_size=50), st.floats(0.5, 5), st.integers(1, 5))
def test_a_bucket_never_gives_more_than_it_promises(pauses: list[float], rate: float, burst: int):
    """In any time, at most the burst and what the rate has filled up since; and after the wait it named, one more."""
    now = 0.0
    buckets = Buckets(rate=rate, burst=burst, clock=lambda: now)
    given_out = 0
    for pause in pauses:
        now += pause
        wait = buckets.take("ada")
        given_out += not wait
        assert given_out <= burst + now * rate + 1e-6
        assert wait <= 1 / rate + 1e-9
    wait = buckets.take("ada")
    now += wait + 1e-6
    assert not wait or buckets.take("ada") == 0


def test_who_is_idle_is_forgotten_first(monkeypatch: pytest.MonkeyPatch):
    """There are never more buckets than a bound, whoever comes by."""
    monkeypatch.setattr("engram.serving.limits._MOST_BUCKETS", 3)
    buckets = Buckets(rate=0.001, burst=1, clock=lambda: 0.0)
    for name in ("ada", "bob", "cleo", "bob", "dora"):
        buckets.take(name)

    assert list(buckets._buckets) == ["cleo", "bob", "dora"]


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[RunningApp]:
    """The network with three requests for each, and then one in a thousand seconds."""
    limits = {"requests_per_second": 0.001, "burst": 3, "body_bytes": 200}
    with RunningApp(social, tmp_path, shards=1, partitions=1, access=access(limits=limits)) as running:
        yield running


def test_who_asks_too_much_waits_and_others_do_not(slow: RunningApp):
    """429 with Retry-After, for each by their name, for those without a token by their address."""
    ada = [slow.http.get(POSTS, params=ADA, headers=bearer(static("ada"))) for _ in range(4)]
    bob = slow.http.get(POSTS, params=ADA, headers=bearer(static("bob")))
    nobody = [slow.http.get(POSTS, params=ADA) for _ in range(4)]

    assert [response.status_code for response in ada] == [200, 200, 200, 429]
    assert [response.status_code for response in nobody] == [200, 200, 200, 429]
    assert bob.status_code == 200
    assert 900 <= int(ada[-1].headers["retry-after"]) <= 1000
    assert ada[-1].json()["type"] == "urn:engram:too_many_requests"
    assert slow.http.get("/health").status_code == 200


def test_trying_tokens_out_is_limited(slow: RunningApp):
    """Three bad tokens from an address, and then none is looked at as an answer: 429."""
    tried = [slow.http.get(POSTS, params=ADA, headers=bearer(f"a guess {number}")) for number in range(4)]

    assert [response.status_code for response in tried] == [401, 401, 401, 429]


def test_a_body_beyond_the_limit_is_refused(slow: RunningApp):
    """With the limit of the access file in the message."""
    path, headers = "/api/social/user/commands/publish", bearer(static("ada"))
    response = slow.http.post(path, params=ADA, json={"text": "x" * 200}, headers=headers)

    assert response.status_code == 413
    assert response.json()["detail"] == "The body is larger than 200 bytes."


def test_the_client_waits_its_turn(tmp_path: Path):
    """A client that is told to slow down does, and all of its commands are handled."""
    limits = {"requests_per_second": 50, "burst": 1}

    async def talk(running: RunningApp) -> list[str]:
        async with running.client(token=static("ada")) as client:
            await client.send("ada", Register(name="Ada"))
            return [await client.send("ada", Publish(text=str(number))) for number in range(5)]

    with RunningApp(social, tmp_path, shards=1, partitions=1, access=access(limits=limits)) as running:
        posts = asyncio.run(talk(running))

    assert len(set(posts)) == 5


def test_without_room_there_is_503_and_the_health_is_still_told(tmp_path: Path):
    """With one request under way and room for one, the next is refused at once, with Retry-After, and nothing is done;
    how the app is can be asked. When the first has ended, there is room again."""
    access_ = access(limits={"in_flight": 1, "burst": 100_000})
    operator = bearer(static("olga"))
    with RunningApp(social, tmp_path, shards=1, partitions=1, access=access_) as running:
        waits = {"after": "end", "wait": f"{SECONDS:g}"}

        def wait_for_events() -> None:
            with httpx.Client(base_url=running.url, timeout=2 * SECONDS, trust_env=False) as http:
                # There was no room for this one while the other looked whether there is.
                while http.get("/api/social/events", params=waits, headers=operator).status_code == 503:
                    pass

        waiting = threading.Thread(target=wait_for_events)
        waiting.start()
        refused = running.http.get(POSTS, params=ADA)
        while refused.status_code == 200:  # the other is not there yet
            refused = running.http.get(POSTS, params=ADA)
        health, metrics = running.http.get("/health"), running.http.get("/metrics", headers=operator)
        running.on_loop(running.service.send("ada", Register(name="Ada"), seconds=SECONDS))
        running.on_loop(running.service.send("bob", Register(name="Bob"), seconds=SECONDS))
        running.service.events.close()  # the first one ends
        waiting.join(SECONDS)
        again = running.http.get(POSTS, params=ADA)

    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert refused.json()["type"] == "urn:engram:overloaded"
    assert (health.status_code, metrics.status_code, again.status_code) == (200, 200, 200)
    assert 'engram_requests_refused_total{app="social",reason="overloaded"}' in metrics.text
