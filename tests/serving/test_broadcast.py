"""Broadcasts of a running app: sent without a key, in force in every partition, also one that was away."""

from __future__ import annotations

import asyncio

import pytest
from engram import Client, Rejected
from engram.log.partitioner import partition_of

from sample_apps.social.app import app
from sample_apps.social.commands import Follow, Publish, Register
from sample_apps.social.home import read_home
from sample_apps.social.rules import BannedWords, BanWord, SetCelebrityFrom
from tests.serving.running import RunningApp

BAN = "/api/social/rules/commands/ban_word"


async def _refused_soon(client: Client, user: str, text: str) -> None:
    """Returns once the user cannot publish the text: a broadcast reaches other partitions a moment after its reply."""
    async with asyncio.timeout(20):
        while not await _is_refused(client, user, text):
            pass


async def _is_refused(client: Client, user: str, text: str) -> bool:
    try:
        await client.send(user, Publish(text=text))
    except Rejected as problem:
        return problem.code == "banned_word"
    return False


def test_a_broadcast_needs_no_key(social: RunningApp):
    """Its route takes none, or `*`; the key of an entity is refused, and nothing is logged."""
    assert social.http.post(BAN, json={"word": "one"}).status_code == 200
    assert social.http.post(BAN, params={"key": "*"}, json={"word": "two"}).status_code == 200
    refused = social.http.post(BAN, params={"key": "ada"}, json={"word": "three"})

    assert refused.status_code == 422
    assert refused.json()["detail"] == "ban_word is not for one entity: leave the key out, or write '*'."
    words = social.http.get("/api/social/rules/queries/banned_words").json()["answer"]
    assert {"one", "two"} <= set(words)
    assert "three" not in words


def test_a_rule_is_in_force_in_every_partition(social: RunningApp):
    """A user of each partition is refused, and whoever asks gets the rules."""
    asyncio.run(_rule_every_partition(social))


async def _rule_every_partition(social: RunningApp) -> None:
    users = {partition_of(f"ruled{n}", social.log.partitions): f"ruled{n}" for n in range(100)}
    assert len(users) == social.log.partitions
    async with Client(social.url, app) as client:
        for user in users.values():
            await client.send(user, Register(name=user))
        await client.broadcast(BanWord(word="nonsense"))
        for user in users.values():
            await _refused_soon(client, user, "utter nonsense")

        assert "nonsense" in await client.ask("*", BannedWords())


def test_a_home_timeline_has_posts_of_celebrities(social: RunningApp):
    """Those that were delivered and those that are read where they are, newest first, each once."""
    asyncio.run(_follow_a_celebrity(social))


async def _follow_a_celebrity(social: RunningApp) -> None:
    async with Client(social.url, app) as client:
        for user in ("home star", "home friend", "home fan", "home reader"):
            await client.send(user, Register(name=user))
        for whom in ("home star", "home friend"):
            await client.send("home reader", Follow(whom=whom))
        posts = [await client.send("home star", Publish(text="delivered"))]
        await client.send("home fan", Follow(whom="home star"))
        await client.broadcast(SetCelebrityFrom(followers=2))
        posts += [
            await client.send(author, Publish(text="x"))
            for author in ("home star", "home friend", "home star", "home friend")
        ]

        async with asyncio.timeout(20):
            while [entry.post for entry in await read_home(client, "home reader")] != posts[::-1]:
                pass  # asked again: a message may still be on its way
        await client.broadcast(SetCelebrityFrom(followers=1000))


@pytest.mark.parametrize("word", ["", "two words", "x" * 81])
def test_a_rule_that_does_not_fit_is_refused(social: RunningApp, word: str):
    """A broadcast's fields are checked like any command's."""
    assert social.http.post(BAN, json={"word": word}).status_code == 422
