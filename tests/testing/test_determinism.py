"""The determinism guard: every way of `tests.testing.ways` is caught, and nothing that is right."""

from __future__ import annotations

import cProfile
import logging
import random
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from engram import App, Command, Context, Entity, Misuse
from engram.shard.determinism.inspection import check_handlers, mentioned
from engram.testing import scenario

from sample_apps.impressions import app as impressions
from sample_apps.social import app as social
from tests.testing.ways import WAYS, Way, found_before, told, told_while_it_runs

# What neither the code shows nor the interpreter tells of: only the test kit sees these.
UNSEEN_BY_RUN = {"MakesADice", "LooksForAFile"}
NAMES = {"ada", "bob"}


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_every_way_is_caught_and_told(way: type[Way]):
    """The author hears what was touched, in which handler and line, and what to use instead."""
    assert re.fullmatch(
        rf"{way.__name__}\(\) for 'n1' is not deterministic: {way.__name__} touched [\w ,]+ \(.+, in [\w.<>]+, "
        r"testing/ways\.py, line \d+\): (use|put|read|emit) .+\.",
        told(way),
    )


def test_a_profiler_is_left_alone():
    """Tests can be profiled: what the profiler would not get back, the guard does not take."""
    profiler = cProfile.Profile()
    profiler.enable()
    try:
        scenario(App("diary", commands=[DoesAllThatIsRight])).when("d1", DoesAllThatIsRight()).replies(10)
        assert sys.getprofile() is profiler
    finally:
        profiler.disable()


def test_there_are_at_least_twenty_ways():
    """The table is as long as it says."""
    assert len(WAYS) >= 20


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_guarded_run_sees_nearly_all_of_them(way: type[Way]):
    """What the code shows is refused before the start, what the interpreter tells of is reported while it runs."""
    seen = bool(found_before(way)) or bool(told_while_it_runs(way))
    assert seen is (way.__name__ not in UNSEEN_BY_RUN)


def test_the_start_is_refused_with_everything_in_one_message():
    """All handlers that mention what they must not touch are named at once."""
    ways = [way for way in WAYS if way.__name__ in ("ReadsTheTime", "TakesAHash")]
    with pytest.raises(Misuse, match=r"2 handlers of notes are not deterministic.*ReadsTheTime touched.*TakesAHash"):
        check_handlers(App("notes", commands=ways))


@dataclass(slots=True, kw_only=True)
class Diary(Entity, name="diary"):
    lines: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Mark:
    """Hashed by what is in it, which Python does with `hash`."""

    text: str


class DoesAllThatIsRight(Command[Diary, int], name="does_all_that_is_right"):
    """Time, ids and chance from ctx, a generator with a seed, sets that are only asked, sorted or counted, a log line,
    and an import."""

    def handle(self, diary: Diary, ctx: Context) -> int:
        import json

        both = NAMES | {"cleo"}
        marks = {Mark(name): len(name) for name in sorted(both)}
        dice = random.Random(ctx.new_id())
        logging.getLogger("diary").warning("%s at %s", sorted(marks, key=lambda mark: mark.text), ctx.now)
        if "ada" in both and len(both) > 2:
            diary.lines.append(json.dumps([str(ctx.now), ctx.random.randrange(9), dice.random(), repr(Mark("x"))]))
        return sum(len(name) for name in both)


def test_what_is_right_is_left_alone():
    """A handler that keeps to ctx is neither refused nor reported, whatever libraries do beneath it."""
    app = App("diary", commands=[DoesAllThatIsRight])
    s = scenario(app)
    s.when("d1", DoesAllThatIsRight()).replies(10)
    s.check()
    assert mentioned(app) == []


@pytest.mark.parametrize("app", [social, impressions], ids=lambda app: app.name)
def test_the_sample_apps_are_deterministic(app):
    """Nothing in them is refused."""
    assert mentioned(app) == []


def test_a_touch_does_not_change_what_the_command_comes_to():
    """With the guard a record must mean what it means without: the command is handled, and told about."""
    way = next(way for way in WAYS if way.__name__ == "ListsAFolder")
    assert told_while_it_runs(way).startswith("touched files (os.listdir, in ListsAFolder.touch")
    assert told_while_it_runs(way) == told_while_it_runs(way)


def test_the_table_in_the_docs_has_every_way():
    """It is made from the same list, by `make docs`."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "determinism.md").read_text()
    assert [way.__name__ for way in WAYS if f"| {way.__name__} |" not in page] == []
