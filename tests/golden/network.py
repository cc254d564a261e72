"""A small social network of today: version 3. What its versions 1 and 2 wrote is in the files of this folder.

The user's name was renamed (version 2) and split (version 3); the time of a post, which is a value inside of users,
commands and events, became a `datetime` (version 2 of the post, in version 3 of the app).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from engram import App, Command, Context, Entity, Event, Json, upcaster, value


@value(name="post", version=2)
@dataclass(frozen=True, slots=True)
class Post:
    text: str
    at: datetime


@dataclass(slots=True, kw_only=True)
class User(Entity, name="user", version=3):
    first_name: str = ""
    last_name: str = ""
    posts: list[Post] = field(default_factory=list)
    pinned: dict[str, Post | None] = field(default_factory=dict)
    followers: dict[str, None] = field(default_factory=dict)


class Register(Command[User, None], name="register", version=3):
    first_name: str
    last_name: str

    def handle(self, user: User, ctx: Context) -> None:
        user.first_name, user.last_name = self.first_name, self.last_name


class Publish(Command[User, int], name="publish"):
    post: Post

    def handle(self, user: User, ctx: Context) -> int:
        if not self.post.text:
            raise ValueError("a post without words")
        user.posts.append(self.post)
        ctx.emit(Published(who=user.key, post=self.post))
        return len(user.posts)


class PublishLater(Command[User, None], name="publish_later"):
    post: Post

    def handle(self, user: User, ctx: Context) -> None:
        ctx.schedule(timedelta(hours=1), Publish(post=self.post))


class Pin(Command[User, None], name="pin"):
    under: str
    post: Post | None

    def handle(self, user: User, ctx: Context) -> None:
        user.pinned[self.under] = self.post


class Follow(Command[User, None], name="follow"):
    whom: str

    def handle(self, user: User, ctx: Context) -> None:
        ctx.send(self.whom, GainFollower(by=user.key))


class GainFollower(Command[User, None], name="gain_follower"):
    by: str

    def handle(self, user: User, ctx: Context) -> None:
        user.followers[self.by] = None


class Published(Event, name="published"):
    who: str
    post: Post


@upcaster(User, from_version=1)
def name_became_display_name(old: Json) -> Json:
    old["display_name"] = old.pop("name")
    return old


@upcaster(Register, from_version=1)
def registered_name_became_display_name(old: Json) -> Json:
    return {"display_name": old["name"]}


def _split(old: Json) -> Json:
    first, _, last = old.pop("display_name").partition(" ")
    return {**old, "first_name": first, "last_name": last}


split_display_name = upcaster(User, from_version=2)(_split)
split_registered_name = upcaster(Register, from_version=2)(_split)


@upcaster(Post, from_version=1)
def seconds_became_a_moment(old: Json) -> Json:
    return {**old, "at": datetime.fromtimestamp(old["at"], UTC).isoformat()}


app = App(
    "network",
    version=3,
    commands=[Register, Publish, PublishLater, Pin, Follow, GainFollower],
    events=[Published],
    upcasters=[
        name_became_display_name,
        registered_name_became_display_name,
        split_display_name,
        split_registered_name,
        seconds_became_a_moment,
    ],
)
