"""Users who follow each other, for the benchmark of reads: commands, queries and five read models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from engram import App, Command, Context, Entity, Lookup, Query, Ranking, Tally
from engram.model.read_model import ReadModel

FOLLOWING = 50


@dataclass(slots=True, kw_only=True)
class User(Entity, name="user"):
    following: dict[str, int] = field(default_factory=dict)
    seen: int = 0


class Follow(Command[User, None], name="follow"):
    whom: str

    def handle(self, user: User, ctx: Context) -> None:
        user.following[self.whom] = 1
        if len(user.following) > FOLLOWING:
            del user.following[next(iter(user.following))]


class See(Command[User, None], name="see"):
    def handle(self, user: User, ctx: Context) -> None:
        user.seen += 1


class Followers(Lookup[User, str], name="followers"):
    def rows(self, user: User) -> Iterator[tuple[str, str]]:
        for whom in user.following:
            yield whom, user.key


class Circles(Lookup[User, str], name="circles"):
    def rows(self, user: User) -> Iterator[tuple[str, str]]:
        for whom in user.following:
            yield whom[:2], user.key


class Ranks(Ranking[User, str], name="ranks"):
    def rows(self, user: User) -> Iterator[tuple[str, int, str]]:
        for whom in user.following:
            yield whom[:2], len(user.following), whom


class Weights(Tally[User], name="weights"):
    def rows(self, user: User) -> Iterator[tuple[str, int]]:
        yield from user.following.items()


class Lengths(Tally[User], name="lengths"):
    def rows(self, user: User) -> Iterator[tuple[str, int]]:
        for whom in user.following:
            yield "all", len(whom)


FIVE: list[type[ReadModel]] = [Followers, Circles, Ranks, Weights, Lengths]


class Seen(Query[User, int], name="seen"):
    def answer(self, user: User) -> int:
        return user.seen


_evaluated: list[int] = []


class Counted(Query[User, int], name="counted"):
    """As `Seen`, and the shard's process counts how often it is evaluated."""

    def answer(self, user: User) -> int:
        _evaluated.append(user.seen)
        return user.seen


class Evaluations(Query[User, int], name="evaluations"):
    """How often `Counted` was evaluated in the shard's process."""

    def answer(self, user: User) -> int:
        return len(_evaluated)


app = App("reads", commands=[Follow, See], queries=[Seen, Counted, Evaluations], read_models=[Followers])
