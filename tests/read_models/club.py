"""A club with every kind of read model, and what they must hold, worked out in plain Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from engram import App, Command, Context, Entity, Lookup, Query, Ranking, Rejected, Search, Tally
from engram.image.found import Subtotal, merge_totals
from engram.model.read_model import Totals
from hypothesis import strategies as st
from pydantic import BaseModel


@dataclass(slots=True, kw_only=True)
class Member(Entity, name="member"):
    points: dict[str, int] = field(default_factory=dict)
    marks: list[str] = field(default_factory=list)
    bio: str = ""
    spoiled: bool = False

    @property
    def played(self) -> list[tuple[str, int]]:
        return list(self.points.items())

    def leave(self) -> None:
        self.points, self.marks, self.bio = {}, [], ""


def play(member: Member, game: str, points: int) -> None:
    member.points[game] = points


def add(mark: str, *, to: Member) -> int:
    to.marks.append(mark)
    return len(to.marks)


class Score(Command[Member, None], name="score"):
    """Points in a game."""

    game: str
    points: int

    def handle(self, member: Member, ctx: Context) -> None:
        play(member, self.game, self.points)


class Mark(Command[Member, int], name="mark"):
    """A mark, which may be there twice."""

    mark: str

    def handle(self, member: Member, ctx: Context) -> int:
        return add(self.mark, to=member)


class Leave(Command[Member, None], name="leave"):
    """Leaves a game, or all that there is."""

    game: str = ""

    def handle(self, member: Member, ctx: Context) -> None:
        if self.game:
            member.points.pop(self.game, None)
        else:
            member.leave()


class Write(Command[Member, None], name="write"):
    bio: str

    def handle(self, member: Member, ctx: Context) -> None:
        member.bio = self.bio


class Vain(Command[Member, None], name="vain"):
    """Changes everything, and then does not."""

    fails: bool = False

    def handle(self, member: Member, ctx: Context) -> None:
        member.points["chess"] = 1_000_000
        member.marks.insert(0, "vain")
        member.bio = "the best"
        if self.fails:
            raise ZeroDivisionError("too much")
        raise Rejected("vain", "No.")


class Spoil(Command[Member, str], name="spoil"):
    """From here on a read model cannot cope with this member; or can again."""

    spoiled: bool = True

    def handle(self, member: Member, ctx: Context) -> str:
        member.spoiled = self.spoiled
        return member.key


class Player(BaseModel, frozen=True):
    """A row with more than one field."""

    who: str
    points: int


class Card(BaseModel, frozen=True):
    """All that there is of a member."""

    key: str
    points: dict[str, int]
    marks: list[str]
    bio: str


class Show(Query[Member, Card], name="show"):
    def answer(self, member: Member) -> Card:
        return card(member)


class Standing(Query[Member, int], name="standing"):
    """The points in a game; rejected for a member who does not play it."""

    game: str

    def answer(self, member: Member) -> int:
        if self.game not in member.points:
            raise Rejected("no_player", f"{member.key} does not play {self.game}.")
        return member.points[self.game]


class Marked(Lookup[Member, str], name="marked"):
    """Who has a mark; under `everybody`, all who have any."""

    def rows(self, member: Member) -> Iterator[tuple[str, str]]:
        for mark in member.marks:
            yield mark, member.key
            yield "everybody", member.key


class Players(Lookup[Member, Player], name="players"):
    def rows(self, member: Member) -> Iterator[tuple[str, Player]]:
        for game, points in member.points.items():
            yield game, Player(who=member.key, points=points)


class Best(Ranking[Member, str], name="best"):
    def rows(self, member: Member) -> Iterator[tuple[str, int, str]]:
        for game, points in member.played:
            yield game, points, member.key


class Points(Tally[Member], name="points"):
    """The points of a game, and a tenth of each under `tenth`: numbers that are not whole."""

    def rows(self, member: Member) -> Iterator[tuple[str, float]]:
        for game, points in member.points.items():
            yield game, points
            yield "tenth", points / 10


class Bios(Search[Member, str], name="bios"):
    def rows(self, member: Member) -> Iterator[tuple[str, str]]:
        if member.bio:
            yield member.bio, member.key


class Fragile(Lookup[Member, str], name="fragile"):
    """Raises for a member that is spoiled."""

    def rows(self, member: Member) -> Iterator[tuple[str, str]]:
        yield "before", member.key
        if member.spoiled:
            raise ValueError(f"{member.key} is spoiled")


COMMANDS = [Score, Mark, Leave, Write, Vain, Spoil]
KINDS = [Marked, Players, Best, Points, Bios]
app = App("club", commands=COMMANDS, queries=[Show, Standing], read_models=[*KINDS, Fragile])

KEYS = ["ada", "bob", "cleo", "dan", "eve", "fay"]
GAMES = ["chess", "go", "whist"]
WORDS = ["quick", "brown", "fox", "lazy", "dog"]

WISHES = st.one_of(
    st.builds(Score, game=st.sampled_from(GAMES), points=st.integers(-3, 3)),
    st.builds(Score, game=st.sampled_from(GAMES), points=st.integers(-3, 3)),
    st.builds(Mark, mark=st.sampled_from("xyz")),
    st.builds(Leave, game=st.sampled_from(["", *GAMES])),
    st.builds(Write, bio=st.lists(st.sampled_from(WORDS), max_size=4).map(" ".join)),
    st.builds(Vain, fails=st.booleans()),
)
SENT = st.tuples(st.sampled_from(KEYS), WISHES)


class Plain:
    """Members as the commands alone make them."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}

    def handle(self, key: str, command: Command[Any, Any]) -> None:
        member = self.members.setdefault(key, Member(key=key))
        match command:
            case Score(game=game, points=points):
                member.points = {**member.points, game: points}
            case Mark(mark=mark):
                member.marks = [*member.marks, mark]
            case Leave(game=""):
                member.points, member.marks, member.bio = {}, [], ""
            case Leave(game=left):
                member.points = {game: points for game, points in member.points.items() if game != left}
            case Write(bio=bio):
                member.bio = bio
            case Vain():
                pass

    def copy(self) -> Plain:
        twin = Plain()
        for key, old in self.members.items():
            twin.members[key] = Member(key=key, points=old.points, marks=old.marks, bio=old.bio)
        return twin


def card(member: Member) -> Card:
    return Card(key=member.key, points=dict(member.points), marks=list(member.marks), bio=member.bio)


def marked(members: Mapping[str, Member], mark: str) -> list[str]:
    return sorted(m.key for m in members.values() if mark in m.marks or (mark == "everybody" and m.marks))


def players(members: Mapping[str, Member], game: str) -> list[Player]:
    return [Player(who=k, points=m.points[game]) for k, m in sorted(members.items()) if game in m.points]


def best(members: Mapping[str, Member], game: str) -> list[tuple[int, str]]:
    return sorted(
        ((m.points[game], key) for key, m in members.items() if game in m.points), key=lambda r: (-r[0], r[1])
    )


def totals(members: Mapping[str, Member], game: str) -> Totals:
    numbers = [m.points[game] for m in members.values() if game in m.points]
    if game == "tenth":
        numbers = [points / 10 for m in members.values() for points in m.points.values()]
    exact = merge_totals(Subtotal(1, number.as_integer_ratio(), number, number) for number in numbers)
    return Totals(len(numbers), exact.sum, min(numbers, default=None), max(numbers, default=None))


def found(members: Mapping[str, Member], words: str) -> set[str]:
    wanted = words.split()
    return {m.key for m in members.values() if wanted and all(word in m.bio.split() for word in wanted)}
