"""The whole way of a running network from one version of its code to the next, on real Spark."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from datetime import UTC, datetime
from typing import Any

import pytest
from engram import Client, Unavailable

from tests.golden import before, network
from tests.spark.running import ROOT, START_S, Running, eventually
from tests.spark.versions import Followers3, Name3, Posts3, new, old

pytestmark = pytest.mark.spark

OLD, NEW = "tests.spark.versions:old", "tests.spark.versions:new"
USERS = [f"user{number}" for number in range(8)]
AT = 1_700_000_000
Publish, Follow = old.commands["publish"], old.commands["follow"]


class Traffic:
    """Users of the old version, who publish one post after the other, until the app is not there any more."""

    def __init__(self, url: str) -> None:
        self.published: dict[str, list[str]] = {user: [] for user in USERS}  # as far as it was acknowledged
        self.tried: dict[str, int] = dict.fromkeys(USERS, 0)
        self._url = url
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()

    @property
    def count(self) -> int:
        return sum(map(len, self.published.values()))

    def join(self) -> None:
        self._thread.join(START_S)
        assert not self._thread.is_alive()

    async def _run(self) -> None:
        async with Client(self._url, old, patience=0) as client:
            await asyncio.gather(*(self._one(client, user) for user in USERS))

    async def _one(self, client: Client, user: str) -> None:
        await client.send(user, before.Register2(display_name=f"{user.title()} Lovelace"))
        await client.send(user, Follow(whom=USERS[(USERS.index(user) + 1) % len(USERS)]))
        try:
            while True:
                self.tried[user] += 1
                text = f"{user} says {self.tried[user]}"
                await client.send(user, Publish(post=before.Post(text, AT + self.tried[user])))
                self.published[user].append(text)
        except Unavailable:
            pass  # it is not known whether the last one was logged


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "engram.cli.main", *arguments]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=START_S, check=False)


async def read(url: str) -> dict[str, tuple[list[str], list[tuple[str, str]], list[str]]]:
    async with Client(url, new) as client:
        return {
            user: (
                await client.ask(user, Name3()),
                await client.ask(user, Posts3()),
                await client.ask(user, Followers3()),
            )
            for user in USERS
        }


def test_a_running_network_goes_from_one_version_to_the_next_and_loses_nothing(start):
    """New code is refused while the old one has records of its own; a savepoint under load ends the old; the new one
    brings everything up, on another number of shards, and goes on; there is no way back to the old."""
    running: Running = start("--shards", "2", "--partitions", "4", app=OLD)
    url = running.ready()
    traffic = Traffic(url)
    assert eventually(lambda: traffic.count > 200, START_S)

    refused = command("run", NEW, "--log", running.log, "--port", "0")
    ended = command("savepoint", "last-of-2", "--url", url, "--json")
    code = running.process.wait(START_S)
    traffic.join()
    upgraded: Running = start("--shards", "3", "--partitions", "4", app=NEW)
    url = upgraded.ready()
    found = asyncio.run(read(url))
    replies = asyncio.run(go_on(url))
    assert upgraded.stop() == 0
    back = command("run", OLD, "--log", running.log, "--port", "0", "--from", "last-of-2")

    # Refused, with both versions, the number of records and what to type.
    assert refused.returncode == 2
    assert "This is version 3 of network, but " in refused.stderr
    assert "after the last snapshot were handled by version 2. End version 2 with `engram savepoint`" in refused.stderr
    assert f"(`engram run {NEW} --log {running.log}`)" in refused.stderr
    # Ended, with everything in the savepoint.
    assert (ended.returncode, code) == (0, 0), ended.stderr
    savepoint = json.loads(ended.stdout)
    assert (savepoint["savepoint"], savepoint["app_version"]) == ("last-of-2", 2)
    assert sum(of["entities"] for of in savepoint["snapshots"]) == len(USERS)
    # Nothing is lost, and nothing came twice; what was acknowledged is there, in its new form.
    for number, user in enumerate(USERS):
        names, posts, followers = found[user]
        assert names == [user.title(), "Lovelace"]
        texts = [f"{user} says {n}" for n in range(1, len(posts) + 1)]
        assert posts == [(text, moment(n)) for n, text in enumerate(texts, 1)]
        assert texts[: len(traffic.published[user])] == traffic.published[user]
        assert len(posts) <= traffic.tried[user]
        assert followers == [USERS[number - 1]]
    # It goes on.
    assert replies == [len(found[user][1]) + 1 for user in USERS]
    # And the old version cannot handle what the new one has.
    assert back.returncode == 2
    assert "after savepoint last-of-2 were handled by version 3" in back.stderr


def moment(number: int) -> str:
    return datetime.fromtimestamp(AT + number, UTC).isoformat()


async def go_on(url: str) -> list[Any]:
    post = network.Post("under version 3", datetime.fromtimestamp(AT, UTC))
    async with Client(url, new) as client:
        return [await client.send(user, network.Publish(post=post)) for user in USERS]
