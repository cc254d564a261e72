"""A home timeline, put together where it is read.

Two ways to bring posts to readers, each where it is cheap. A post of most people goes to each follower's timeline when
it is published: a few messages once, and reading is one query. A post of a celebrity would be a million messages, most
of them for people who do not look today; so it stays where it is, and who reads asks those few celebrities that they
follow.
"""

from __future__ import annotations

import asyncio

from engram import Client

from sample_apps.social.queries import Celebrities, Posts, Timeline, TimelineView


async def read_home(client: Client, user: str, *, limit: int = 20) -> list[TimelineView]:
    """The newest posts of all whom a user follows, newest first."""
    delivered, celebrities = await asyncio.gather(
        client.ask(user, Timeline(limit=limit)), client.ask(user, Celebrities())
    )
    read = await asyncio.gather(*(client.ask(author, Posts(limit=limit)) for author in celebrities))
    entries = {(entry.author, entry.post): entry for entry in delivered}
    for author, posts in zip(celebrities, read, strict=True):
        for post in posts:  # some were delivered, before their author was a celebrity
            entries[author, post.post] = TimelineView(author=author, post=post.post, text=post.text, at=post.at)
    return sorted(entries.values(), key=lambda entry: (entry.at, entry.post), reverse=True)[:limit]
