"""Shared objects: changed by broadcasts in every partition alike, read by every handler, changed by no other."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest
from engram import App, Broadcast, Command, Context, Entity, Event, Misuse, Part, Query, Rejected, Shared
from engram.testing import scenario


@dataclass(slots=True, kw_only=True)
class Limit(Part):
    at_most: int


@dataclass(slots=True, kw_only=True)
class Rules(Shared, name="rules"):
    banned: dict[str, datetime] = field(default_factory=dict)
    limits: dict[str, Limit] = field(default_factory=dict)
    ids: list[str] = field(default_factory=list)
    version: int = 0


@dataclass(slots=True, kw_only=True)
class Tone(Shared, name="tone"):
    loud: bool = False


@dataclass(slots=True, kw_only=True)
class Wall(Entity, name="wall"):
    lines: list[str] = field(default_factory=list)


class Banned(Event, name="banned"):
    word: str


class Ban(Broadcast[Rules, int], name="ban"):
    word: str

    def handle(self, rules: Rules, ctx: Context) -> int:
        if self.word in rules.banned:
            raise Rejected("banned", "It is already.")
        rules.banned[self.word] = ctx.now
        rules.limits[self.word] = Limit(at_most=3)
        rules.ids += [ctx.new_id(), str(ctx.position), str(ctx.random.random())]
        rules.version += 1
        if self.word == "broken":
            raise KeyError(self.word)
        ctx.send("log", Write(line="ban"))
        ctx.emit(Banned(word=self.word))
        return rules.version


class Unban(Broadcast[Rules, None], name="unban"):
    word: str

    def handle(self, rules: Rules, ctx: Context) -> None:
        rules.banned.pop(self.word, None)


class BanForAnHour(Broadcast[Rules, None], name="ban_for_an_hour"):
    word: str

    def handle(self, rules: Rules, ctx: Context) -> None:
        rules.banned[self.word] = ctx.now
        ctx.schedule(timedelta(hours=1), Unban(word=self.word))


class Shout(Broadcast[Tone, None], name="shout"):
    def handle(self, tone: Tone, ctx: Context) -> None:
        tone.loud = len(ctx.shared(Rules).banned) > 0


class Write(Command[Wall, None], name="write"):
    line: str

    def handle(self, wall: Wall, ctx: Context) -> None:
        if self.line in ctx.shared(Rules).banned:
            raise Rejected("banned", "Not here.")
        wall.lines.append(self.line.upper() if ctx.shared(Tone).loud else self.line)


class Report(Command[Wall, None], name="report"):
    """An entity that changes the rules for all."""

    word: str

    def handle(self, wall: Wall, ctx: Context) -> None:
        ctx.broadcast(Ban(word=self.word))


class Meddle(Command[Wall, None], name="meddle"):
    """What no handler may do: change what is shared."""

    how: str

    def handle(self, wall: Wall, ctx: Context) -> None:
        wall.lines.append(self.how)
        rules = ctx.shared(Rules)
        match self.how:
            case "field":
                rules.version += 1
            case "dict":
                rules.banned["x"] = ctx.now
            case "part":
                rules.limits["bad"].at_most = 99
            case "and raise":
                rules.banned.clear()
                raise Rejected("no", "and no trace")
            case "send it":
                ctx.send("*", Ban(word="x"))
            case "broadcast a command":
                ctx.broadcast(Write(line="x"))  # type: ignore[arg-type]
            case "schedule it":
                ctx.schedule(timedelta(0), Ban(word="x"))
            case "no shared":
                ctx.shared(Wall)  # type: ignore[type-var]


class MeddleWithOthers(Broadcast[Tone, None], name="meddle_with_others"):
    def handle(self, tone: Tone, ctx: Context) -> None:
        tone.loud = True
        ctx.shared(Rules).version += 1


class MeddleWithItself(Broadcast[Tone, None], name="meddle_with_itself"):
    def handle(self, tone: Tone, ctx: Context) -> None:
        ctx.shared(Tone).loud = True


class BannedWords(Query[Rules, list[str]], name="banned_words"):
    def answer(self, rules: Rules) -> list[str]:
        return list(rules.banned)


app = App(
    "walls",
    commands=[Ban, Unban, BanForAnHour, Shout, Write, Report, Meddle, MeddleWithOthers, MeddleWithItself],
    queries=[BannedWords],
    events=[Banned],
)
KEYS = [f"wall{n}" for n in range(20)]


def test_a_rule_changes_in_every_partition():
    """After a broadcast, handlers of all entities go by it; the reply is that of the first to handle it."""
    s = scenario(app)
    s.given("wall1", Write(line="bad"))
    s.broadcast(Ban(word="bad")).replies(1)

    for key in KEYS:
        s.when(key, Write(line="bad")).rejected("banned")
        s.given(key, Write(line="good"))
    assert s.ask("*", BannedWords()) == ["bad"]
    s.check()


def test_shared_objects_are_the_same_everywhere():
    """Also what comes of time, ids, positions and random numbers: a broadcast is handled as at home."""
    s = scenario(app)
    for n, word in enumerate(["a", "b", "a", "c"]):
        s.pass_time(timedelta(seconds=n))
        s.given(KEYS[n], Write(line="x"))
        s.broadcast(Ban(word=word))

    rules = s.shared(Rules)
    assert (list(rules.banned), rules.version, len(set(rules.ids))) == (["a", "b", "c"], 3, 9)
    s.check()


def test_effects_of_a_broadcast_leave_once():
    """However many partitions handle it, its messages and events leave from one."""
    s = scenario(app)
    s.broadcast(Ban(word="bad")).replies(1).sends("log", Write(line="ban")).emits(Banned(word="bad"))

    assert s.state("log", Wall).lines == ["ban"]


def test_a_broadcast_that_is_refused_or_fails_changes_nothing_anywhere():
    """Only what was handled goes on to the others."""
    s = scenario(app)
    s.broadcast(Ban(word="bad"))
    before = s.shared(Rules)
    s.broadcast(Ban(word="bad")).rejected("banned")
    s.broadcast(Ban(word="broken")).quarantined(KeyError)

    assert s.shared(Rules) == before


def test_an_entity_may_broadcast():
    """From a handler it goes to its home first, and from there to all."""
    s = scenario(app)
    s.given("wall3", Report(word="bad"))

    for key in KEYS:
        s.when(key, Write(line="bad")).rejected("banned")
    s.check()


def test_a_broadcast_may_schedule_one():
    """A rule that ends by itself does so everywhere."""
    s = scenario(app)
    s.broadcast(BanForAnHour(word="bad"))
    s.when("wall5", Write(line="bad")).rejected("banned")
    s.pass_time(timedelta(hours=1))

    for key in KEYS:
        s.given(key, Write(line="bad"))
    s.check()


def test_a_broadcast_reads_other_shared_objects():
    """In every partition it sees them as they were at home."""
    s = scenario(app)
    s.broadcast(Shout())
    assert not s.shared(Tone).loud
    s.broadcast(Ban(word="bad"))
    s.broadcast(Shout())
    assert s.shared(Tone).loud
    s.given("wall7", Write(line="x"))
    assert s.state("wall7", Wall).lines == ["X"]


@pytest.mark.parametrize("how", ["field", "dict", "part", "send it", "broadcast a command", "schedule it", "no shared"])
def test_no_other_handler_changes_what_is_shared(how):
    """It is undone and the command quarantined, with nothing left of it."""
    s = scenario(app)
    s.broadcast(Ban(word="bad"))
    before = s.shared(Rules)
    s.when("wall1", Meddle(how=how)).quarantined(Misuse)

    assert s.shared(Rules) == before
    assert "wall1" not in s.entities(Wall)
    s.check()


def test_what_a_refused_handler_did_to_the_shared_is_undone():
    """A rejection leaves no trace there either."""
    s = scenario(app)
    s.broadcast(Ban(word="bad"))
    s.when("wall1", Meddle(how="and raise")).rejected("no")

    assert list(s.shared(Rules).banned) == ["bad"]
    s.check()


def test_a_broadcast_has_one_home():
    """With the key of an entity, as a stranger might write it into the log, it is quarantined there."""
    s = scenario(app)
    s.when("wall3", Ban(word="bad")).quarantined(Misuse)

    assert s.shared(Rules).banned == {}


@pytest.mark.parametrize("command", [MeddleWithOthers(), MeddleWithItself()])
def test_a_broadcast_changes_its_own_object_only(command):
    """What it was lent is read only, and what is its own comes as an argument."""
    s = scenario(app)
    s.broadcast(command).quarantined(Misuse)

    assert (s.shared(Tone).loud, s.shared(Rules).version) == (False, 0)


class Wrong(Command[Rules, None], name="wrong"):
    def handle(self, rules: Rules, ctx: Context) -> None:
        rules.version += 1


class AlsoWrong(Broadcast[Wall, None], name="also_wrong"):  # type: ignore[type-var]
    def handle(self, wall: Wall, ctx: Context) -> None:
        wall.lines.clear()


@pytest.mark.parametrize("command", [Wrong, AlsoWrong])
def test_shared_objects_and_broadcasts_belong_together(command):
    """A plain command for what is shared would change one partition only."""
    with pytest.raises(Misuse, match="a Broadcast is for a Shared object, and only that is"):
        App("wrong", commands=[command])
