"""Timers of a running app, by the real clock."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from engram import Client

from sample_apps.social.commands import PublishLater, Register
from sample_apps.social.queries import Drafts, Posts
from tests.serving.running import RunningApp


async def publish_later(client: Client, user: str) -> tuple[datetime, datetime]:
    """When a post was to be published, and when it was."""
    await client.send(user, Register(name=user))
    at = datetime.now(UTC) + timedelta(seconds=0.7)
    post = await client.send(user, PublishLater(text="Later", at=at))
    assert [draft.post for draft in await client.ask(user, Drafts())] == [post]
    async with asyncio.timeout(20):
        while not (published := await client.ask(user, Posts())):
            pass
    return at, published[0].at


def test_a_timer_fires_at_its_time_though_nothing_else_happens(social: RunningApp):
    """Not before it, and soon after."""

    async def story() -> tuple[datetime, datetime]:
        async with social.client() as client:
            return await publish_later(client, "timely")

    at, published = asyncio.run(story())
    assert timedelta(0) <= published - at < timedelta(seconds=10)
