"""What `engram repartition` and `engram archive` refuse, and what becomes of positions afterwards: without Spark."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from engram.cli.repartition import RepartitionOptions, plan_of
from engram.errors import Misuse
from engram.log.base import Making, Unfinished
from engram.log.cursor import Cursor, Place
from engram.log.open import make_log, open_log
from engram.spark.repartition import repartition

from tests.cli.saying import Engram, sentence
from tests.reshape.drafts import REFERENCE, Places, Town
from tests.serving.counter import app as counter_app
from tests.serving.running import RunningApp

pytestmark = pytest.mark.usefixtures("quiet")
OTHER = "tests.serving.counter:app"


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """A town with four partitions that was ended cleanly."""
    made = Places(tmp_path, None)
    Town(made.log("old"), made.snapshots("old"), partitions=4).live(12)
    return made


def old(places: Places) -> list[str]:
    return [REFERENCE, "--log", places.log("old"), "--snapshots", places.snapshots("old")]


def into(places: Places, name: str = "new") -> list[str]:
    return ["--into", places.log(name), "--into-snapshots", places.snapshots(name)]


# Repartition


@pytest.mark.parametrize(
    ("to", "said"),
    [
        (0, "A log has 1 to 32,768 partitions, not 0: choose another number."),
        (-3, "A log has 1 to 32,768 partitions, not -3: choose another number."),
        (40_000, "A log has 1 to 32,768 partitions, not 40000: choose another number."),
        (4, "The log has 4 partitions already: choose another number, or leave it as it is."),
    ],
)
def test_a_number_that_is_none_is_refused(engram: Engram, places: Places, tmp_path: Path, to: int, said: str):
    """One sentence, exit code 2, and nothing is made."""
    assert sentence(engram("repartition", *old(places), "--to", to, *into(places)), 2) == said
    assert not (tmp_path / "new.db").exists()


def test_a_target_that_is_there_is_refused(engram: Engram, places: Places):
    """Whether it is another log, the old one, or the place of the old snapshots."""
    open_log(places.log("new"), "town", partitions=3, create=True).close()
    words = ["repartition", *old(places), "--to", "3"]

    assert "There is a log at" in sentence(engram(*words, *into(places)), 2)
    assert "need places of their own" in sentence(engram(*words, *into(places, "old")), 2)
    taken = [*into(places, "third")[:2], "--into-snapshots", places.snapshots("old")]
    assert "need places of their own" in sentence(engram(*words, *taken), 2)
    Town(places.log("fourth"), places.snapshots("fourth"), partitions=2).live(4)
    taken = ["--into", places.log("fifth"), "--into-snapshots", places.snapshots("fourth")]
    assert "There are snapshots of town in" in sentence(engram(*words, *taken), 2)


def test_what_was_handled_after_the_savepoint_is_refused(engram: Engram, places: Places):
    """With the way out: what these records led to is in no snapshot."""
    town = Town(places.log("old"), places.snapshots("old"))
    owner = town.network.start()
    town.tell(5)
    owner.step()
    owner.kill()
    town.close()

    for more, after in ((["--from", "before"], "after savepoint before"), ([], "after its last snapshot")):
        said = sentence(engram("repartition", *old(places), "--to", "3", *into(places), *more), 2)
        assert f"were handled {after}: what they led to is in no snapshot." in said
        assert "Start version 1 of town once more, end it with `engram savepoint NAME`, and begin with that." in said


def test_an_owner_that_was_trimmed_is_not_taken_for_gone(engram: Engram, places: Places):
    """The record that says who has a partition is in the archive: until it is named, nobody knows who is at work."""
    town = Town(places.log("old"), places.snapshots("old"))
    owner = town.network.start()
    town.tell(12)
    owner.step()
    for partition in range(4):
        owner.shard.begin_snapshot(partition)
    town.network.settle(owner)
    for partition in range(4):
        town.network.log.trim(partition, town.network.store.manifests(partition)[0].offset)
    owner.kill()
    town.close()

    said = sentence(engram("repartition", *old(places), "--to", "3", *into(places)), 2)
    assert said.startswith("Whether town is running cannot be told: record ")
    assert said.endswith("or name the archive in the log's URL.")


def test_another_app_and_no_savepoint_are_refused(engram: Engram, places: Places):
    """By name; and snapshots that are not there."""
    words = ["repartition", OTHER, *old(places)[1:], "--to", "3", *into(places)]
    assert "belongs to app 'town', not to 'counters'" in sentence(engram(*words), 2)
    said = sentence(engram("repartition", *old(places), "--to", "3", *into(places), "--from", "nobody"), 2)
    assert said == "There is no savepoint nobody. There are: before."
    words = ["repartition", REFERENCE, "--log", places.log("old"), "--to", "3", *into(places)]
    assert "There are no snapshots of town in" in sentence(engram(*words), 2)


def test_a_running_app_is_refused(engram: Engram, tmp_path: Path):
    """Whoever has the partition is named."""
    with RunningApp(counter_app, tmp_path) as running:
        running.http.post("/api/counters/counter/commands/add", params={"key": "a"})
        engram("snapshot", "take", "--url", running.url)
        log = f"sqlite:{next(tmp_path.glob('*.db'))}"
        words = ["repartition", OTHER, "--log", log, "--snapshots", running.folder / "snapshots", "--to", "3"]
        said = engram(*words, "--into", f"sqlite:{tmp_path}/new.db")
    assert said.exit_code == 2
    assert "counters is running: shard" in said.stderr


def test_an_unfinished_log_is_refused_by_all(engram: Engram, places: Places):
    """Nobody takes what an interrupted repartition has left for a log."""
    make_log(places.log("new"), "town", partitions=3, making=Making("plan", 9)).close()
    for words in (["replay"], ["log", "show"], ["trace"]):
        more = ["0:1.0"] if words == ["trace"] else []
        said = sentence(engram(*words, REFERENCE, *more, "--log", places.log("new")), 2)
        assert "is not whole: `engram repartition` was interrupted while it made it." in said


def test_positions_of_before_are_refused(engram: Engram, places: Places):
    """A trace and a cursor of the old log are not taken for something of the new one."""
    with closing(make_log(places.log("new"), "town", partitions=4, making=Making("plan", 1000))) as draft:
        draft.finish()
    cursor = Cursor("town", 4, {1: Place(3, 0, 0)})
    new = [REFERENCE, "--log", places.log("new")]

    said = sentence(engram("trace", REFERENCE, "1:3.0", "--log", places.log("new")), 2)
    assert said.startswith(
        "1:3.0 is before record 1000, where this log begins: it is of the log that this one was made"
    )
    said = sentence(engram("tail", *new, "--events", "--after", str(cursor)), 2)
    assert "The cursor is at record 3 of partition 1, and this log begins at record 1000" in said


def test_records_that_come_meanwhile_are_noticed(places: Places):
    """The new log stays closed: what came would be lost."""
    options = RepartitionOptions(
        reference=REFERENCE,
        log=places.log("old"),
        snapshots=places.snapshots("old"),
        to=3,
        into=places.log("new"),
        into_snapshots=places.snapshots("new"),
    )
    plan = plan_of(options)
    late = Town(places.log("old"), places.snapshots("old"))
    late.tell(1)
    late.close()

    def in_this_process(_spark: Any, pieces: Any, work: Any, **_how: Any) -> list[Any]:
        return [work(piece, lambda _done, _of: None) for piece in pieces]

    with pytest.raises(Misuse, match=r"1 records have come into .* meanwhile: stop whoever writes to it"):
        repartition(None, plan, told=lambda *_: lambda _: None, run=in_this_process)
    with pytest.raises(Unfinished):
        open_log(plan.target.log, "town")


# Archive


def test_an_archive_needs_a_snapshot(engram: Engram, places: Places, tmp_path: Path):
    """Only what is older than one is archived; and it must be of this app."""
    (tmp_path / "empty" / "town").mkdir(parents=True)
    words = ["archive", REFERENCE, "--log", places.log("old"), "--to", tmp_path / "archive"]

    said = sentence(engram(*words, "--snapshots", tmp_path / "empty"), 2)
    assert said.endswith("only what is older than one is archived: take one with `engram snapshot take`.")
    assert "belongs to app 'town', not to 'counters'" in sentence(engram("archive", OTHER, *words[2:]), 2)
    assert not (tmp_path / "archive").exists()


def test_a_trimmed_log_is_shown_from_where_it_begins(engram: Engram, places: Places):
    """And a replay from zero says in one sentence what is missing; from the savepoint it needs nothing else."""
    whole = json.loads(engram("replay", REFERENCE, "--log", places.log("old"), "--json").stdout)
    with closing(open_log(places.log("old"), "town")) as log:
        for partition in range(4):
            log.trim(partition, 2)

    shown = engram("log", "show", REFERENCE, "--log", places.log("old"), "--partition", "0", "--json")
    assert json.loads(shown.stdout.splitlines()[0])["position"] == "0:2"
    said = sentence(engram("replay", REFERENCE, "--log", places.log("old")), 2)
    assert said.startswith("Record 0 of partition 0 is needed, but")
    assert "begins at record 2 there" in said
    rest = engram("replay", *old(places), "--from", "before", "--json")
    assert [p["digest"] for p in json.loads(rest.stdout)["partitions"]] == [p["digest"] for p in whole["partitions"]]
