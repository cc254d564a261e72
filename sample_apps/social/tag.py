"""Tags: words with a # in posts, counted by the hour. Posts of many users, so each tag is an entity of its own."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import timedelta

from engram import Command, Context, Entity, Windows, allow

_TAG = re.compile(r"#(\w{1,80})")


def tags_of(text: str) -> list[str]:
    """The tags of a text, each once, without regard to upper and lower case."""
    return list(dict.fromkeys(_TAG.findall(text.casefold())))


@dataclass(slots=True, kw_only=True)
class Hourly(Windows, size=timedelta(hours=1), lateness=timedelta(hours=1)):
    """Full hours in UTC. Lateness keeps the last one in sight until the next is over."""


@dataclass(slots=True, kw_only=True)
class Tag(Entity, name="tag"):
    hours: Hourly = field(default_factory=Hourly)


class UseTag(Command[Tag, None], name="use_tag", authorize=allow.nobody):
    """A post has this tag."""

    def handle(self, tag: Tag, ctx: Context) -> None:
        tag.hours.add("posts", ctx, close=ForgetHours())


class ForgetHours(Command[Tag, None], name="forget_hours", authorize=allow.nobody):
    """What was trending then is of no interest any more. Sent by a timer."""

    def handle(self, tag: Tag, ctx: Context) -> None:
        tag.hours.take_closed(ctx, close=self)
