"""The small social network as it was: its versions 1 and 2, which wrote golden files and cannot read newer ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from engram import App, Command, Context, Entity, Event, Json, upcaster, value


@value(name="post")
@dataclass(frozen=True, slots=True)
class Post:
    text: str
    at: int  # seconds since 1970


@dataclass(slots=True, kw_only=True)
class User1(Entity, name="user"):
    name: str = ""
    posts: list[Post] = field(default_factory=list)
    pinned: dict[str, Post | None] = field(default_factory=dict)
    followers: dict[str, None] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class User2(Entity, name="user", version=2):
    display_name: str = ""
    posts: list[Post] = field(default_factory=list)
    pinned: dict[str, Post | None] = field(default_factory=dict)
    followers: dict[str, None] = field(default_factory=dict)


class Register1(Command[User1, None], name="register"):
    name: str

    def handle(self, user: User1, ctx: Context) -> None:
        user.name = self.name


class Register2(Command[User2, None], name="register", version=2):
    display_name: str

    def handle(self, user: User2, ctx: Context) -> None:
        user.display_name = self.display_name


class Published(Event, name="published"):
    who: str
    post: Post


def _commands(of: Any) -> list[Any]:
    """What did not change from version 1 to 2, for each one's own user."""

    class Publish(Command[of, int], name="publish"):
        post: Post

        def handle(self, user: Any, ctx: Context) -> int:
            if not self.post.text:
                raise ValueError("a post without words")
            user.posts.append(self.post)
            ctx.emit(Published(who=user.key, post=self.post))
            return len(user.posts)

    class PublishLater(Command[of, None], name="publish_later"):
        post: Post

        def handle(self, user: Any, ctx: Context) -> None:
            ctx.schedule(timedelta(hours=1), Publish(post=self.post))

    class Pin(Command[of, None], name="pin"):
        under: str
        post: Post | None

        def handle(self, user: Any, ctx: Context) -> None:
            user.pinned[self.under] = self.post

    class GainFollower(Command[of, None], name="gain_follower"):
        by: str

        def handle(self, user: Any, ctx: Context) -> None:
            user.followers[self.by] = None

    class Follow(Command[of, None], name="follow"):
        whom: str

        def handle(self, user: Any, ctx: Context) -> None:
            ctx.send(self.whom, GainFollower(by=user.key))

    return [Publish, PublishLater, Pin, Follow, GainFollower]


def _same(old: Json) -> Json:
    old["display_name"] = old.pop("name")
    return old


app1 = App("network", version=1, commands=[Register1, *_commands(User1)], events=[Published])
app2 = App(
    "network",
    version=2,
    commands=[Register2, *_commands(User2)],
    events=[Published],
    upcasters=[upcaster(User2, from_version=1)(_same), upcaster(Register2, from_version=1)(_same)],
)
