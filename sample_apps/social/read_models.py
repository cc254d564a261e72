"""What can be read of many users at once: rows that follow from each of them, found wherever they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from engram import Lookup, Ranking, Search, Tally, allow

from sample_apps.social.tag import Tag
from sample_apps.social.user import User

EVERYBODY = "everybody"


class FollowersOf(Lookup[User, str], name="followers_of", authorize=allow.owner | allow.operator):
    """Who follows a user, sorted. It is what followers say of themselves: there at once, before any message."""

    def rows(self, user: User) -> Iterator[tuple[str, str]]:
        for whom in user.following:
            yield whom, user.key


class MostFollowed(Ranking[User, str], name="most_followed", authorize=allow.anyone):
    """Those with the most followers first, on the board of everybody."""

    def rows(self, user: User) -> Iterator[tuple[str, int, str]]:
        if user.followers:
            yield EVERYBODY, len(user.followers), user.key


def hour(moment: datetime) -> str:
    """The board of trending tags for a moment in UTC, such as 2024-01-01T09."""
    return moment.strftime("%Y-%m-%dT%H")


class TrendingTags(Ranking[Tag, str], name="trending_tags", authorize=allow.anyone):
    """The tags of most posts in an hour, this one or the last."""

    def rows(self, tag: Tag) -> Iterator[tuple[str, int, str]]:
        for window in tag.hours.open():
            yield hour(window.start), window.count("posts"), tag.key


class Figures(Tally[User], name="figures", authorize=allow.anyone):
    """How many users have posts, followers, likes; how many in all, and how many the busiest one has."""

    def rows(self, user: User) -> Iterator[tuple[str, int]]:
        if user.posts:
            yield "posts", len(user.posts)
        if user.followers:
            yield "followers", len(user.followers)
        if user.liked:
            yield "likes", len(user.liked)


@dataclass(frozen=True, slots=True, kw_only=True)
class PostFound:
    """Where a post is. A dataclass: who has many posts has as many of these made and compared with each new one."""

    author: str
    post: str


class PostSearch(Search[User, PostFound], name="post_search", authorize=allow.anyone):
    """Posts by their words; not those of protected accounts."""

    def rows(self, user: User) -> Iterator[tuple[str, PostFound]]:
        for key, post in () if user.protected else user.posts.items():
            yield post.text, PostFound(author=user.key, post=key)


class PeopleSearch(Search[User, str], name="people_search", authorize=allow.anyone):
    """Users by their names and keys."""

    def rows(self, user: User) -> Iterator[tuple[str, str]]:
        if user.since is not None:
            yield f"{user.name} {user.key}", user.key
