"""A stream ends with the token that it was asked for with."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from engram import Unauthenticated

from sample_apps.social import app as social
from sample_apps.social.commands import Follow, Register
from sample_apps.social.read_models import EVERYBODY, MostFollowed
from tests.serving.running import SECONDS, RunningApp
from tests.serving.streams import streaming
from tests.serving.tokens import AUDIENCE, ISSUER, SECRET, SECRET_ENV, access, bearer, claims, signed, static

LEEWAY = 1
PATHS = {
    "/api/social/user/queries/profile": {"key": "ada"},
    "/api/social/read_models/most_followed": {"board": EVERYBODY},
    "/api/social/events": {},
}


@pytest.fixture
def closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningApp]:
    """The network with Ada and Bob in it, for those with static tokens and for those with JSON web tokens."""
    monkeypatch.setenv(SECRET_ENV, SECRET)
    jwt = {"algorithm": "HS256", "issuer": ISSUER, "audience": AUDIENCE, "secret_env": SECRET_ENV, "leeway": LEEWAY}
    with RunningApp(social, tmp_path, shards=1, partitions=2, access=access(jwt=jwt)) as running:
        for name in ("ada", "bob"):
            running.on_loop(running.service.send(name, Register(name=name), seconds=SECONDS))
        yield running


def test_streams_end_with_their_token_and_say_so(closed: RunningApp):
    """Of queries, read models and events, not before it expires; what was begun with another token goes on."""
    expires = int(time.time()) + 4
    token = signed(claims("olga", exp=expires, roles=["operator"]))
    with ExitStack() as open_streams:
        readers = [
            open_streams.enter_context(streaming(closed, path, parameters, headers=bearer(token)))
            for path, parameters in PATHS.items()
        ]
        lasting = open_streams.enter_context(
            streaming(closed, "/api/social/user/queries/profile", {"key": "bob"}, headers=bearer(static("bob")))
        )
        lasting.next()
        lasts = []
        for reader in readers:
            heard = reader.next()
            while heard.event != "dropped":
                heard = reader.next()
            lasts.append(heard)
            with pytest.raises(AssertionError, match="the stream has ended"):
                reader.next()
        ended = time.time()
        closed.on_loop(closed.service.send("bob", Follow(whom="ada"), seconds=SECONDS))
        assert lasting.next().data["answer"]["following"] == 1

    assert ended >= expires + LEEWAY
    assert all("The token has expired" in last.data["reason"] for last in lasts)
    assert (
        'engram_subscribers_dropped_total{app="social",reason="expired"} 3.0'
        in closed.http.get("/metrics", headers=bearer(static("olga"))).text
    )


def test_the_client_says_that_its_token_has_expired(closed: RunningApp):
    """It comes back by itself with the same token, and that is not good any more."""

    async def talk() -> None:
        token = signed(claims("ada", exp=int(time.time()) + 2))
        async with closed.client(token=token) as client:
            stream = client.watch(MostFollowed, EVERYBODY)
            assert await anext(stream) == []
            with pytest.raises(Unauthenticated, match="expired"):
                await anext(stream)

    asyncio.run(talk())
