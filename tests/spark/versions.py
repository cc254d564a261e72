"""Two versions of the golden network, with queries: 2, whose users have a display name, and 3, which splits it.

Posts, which are values in users, commands and events, have a number of seconds in 2 and a `datetime` in 3.
"""

from __future__ import annotations

from typing import Any

from engram import App, Query

from tests.golden import before, network


def _with(app: App, queries: list[type[Query[Any, Any]]]) -> App:
    return App(
        app.name,
        version=app.version,
        commands=app.commands.values(),
        queries=queries,
        events=app.events.values(),
        upcasters=[step for steps in app._steps.values() for step in steps],
    )


class Name2(Query[before.User2, str], name="name"):
    def answer(self, user: before.User2) -> str:
        return user.display_name


class Name3(Query[network.User, list[str]], name="names"):
    def answer(self, user: network.User) -> list[str]:
        return [user.first_name, user.last_name]


class Posts3(Query[network.User, list[tuple[str, str]]], name="posts"):
    """What was written, and when."""

    def answer(self, user: network.User) -> list[tuple[str, str]]:
        return [(post.text, post.at.isoformat()) for post in user.posts]


class Followers3(Query[network.User, list[str]], name="followers"):
    def answer(self, user: network.User) -> list[str]:
        return list(user.followers)


old = _with(before.app2, [Name2])
new = _with(network.app, [Name3, Posts3, Followers3])
