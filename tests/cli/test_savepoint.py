"""`engram snapshot take`, `show` and `restore-from`, and `engram savepoint`: on a real log and store."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from engram import App
from engram.codec.record import Envelope, Epoch, Kind, encode_commands, encode_epoch
from engram.log.base import Entry
from engram.log.sqlite import SqliteLog
from engram.snapshots.files import FileSnapshots

from sample_apps.social.commands import Publish, Register
from tests.cli.saying import Engram, Java, sentence
from tests.serving.counter import app as counter_app
from tests.serving.running import SECONDS, RunningApp
from tests.shard.network import Network, Owner

SOCIAL = "sample_apps.social:app"


# A running app


@pytest.fixture
def running(tmp_path: Path):
    with RunningApp(counter_app, tmp_path) as found:
        for number in range(12):
            found.http.post("/api/counters/counter/commands/add", params={"key": f"key{number}"})
        yield found


def test_a_running_app_takes_a_savepoint(engram: Engram, running: RunningApp):
    """A line for each partition, and the store has what it says."""
    said = engram("snapshot", "take", "--name", "before-lunch", "--url", running.url, "--json")
    table = engram("snapshot", "take", "--url", running.url)

    assert said.exit_code == table.exit_code == 0
    content = json.loads(said.stdout.splitlines()[-1])  # the shards in this process say something too
    assert [s["partition"] for s in content["snapshots"]] == [0, 1, 2, 3]
    assert sum(s["entities"] for s in content["snapshots"]) == 12
    store = FileSnapshots(running.folder / "snapshots", "counters")
    assert [store.savepoint(p, "before-lunch").digest for p in range(4)] == [s["digest"] for s in content["snapshots"]]
    assert "counters: snapshots" in table.stdout


def test_a_name_that_is_taken_is_refused(engram: Engram, running: RunningApp):
    """One sentence, and exit code 2."""
    engram("snapshot", "take", "--name", "once", "--url", running.url)

    again = sentence(engram("snapshot", "take", "--name", "once", "--url", running.url), 2)
    assert again.startswith("There is a savepoint once of partition ")
    assert again.endswith("choose another name.")
    assert "cannot name a savepoint" in sentence(engram("savepoint", "a/b", "--url", running.url), 2)


def test_nobody_there_is_told(engram: Engram, nobody: str):
    """Exit code 3: try again later."""
    assert "No app answers" in sentence(engram("snapshot", "take", "--url", nobody), 3)
    assert "No app answers" in sentence(engram("savepoint", "--url", nobody), 3)


def test_savepoint_stops_the_app_and_names_itself(engram: Engram, running: RunningApp):
    """The name has the version and the time, unless one is given; afterwards the app is gone."""
    said = engram("savepoint", "--url", running.url)
    running._thread.join(SECONDS)

    store = FileSnapshots(running.folder / "snapshots", "counters")
    (name,) = {store.manifests(p)[0].savepoint for p in range(4)}
    assert said.exit_code == 0, said.output
    assert name.startswith("v1-20")
    assert f"Version 1 has ended, and all that it has handled is in savepoint {name}." in said.stdout
    assert not running._thread.is_alive()


# At rest


class Story:
    """A log and a store in a folder, with what happened there: a savepoint after six commands, and then six more."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:{folder / 'social.db'}"
        log = SqliteLog(folder / "social.db", "social", partitions=2, create=True)
        store = FileSnapshots(folder / "social.db-snapshots", "social")
        self.network = Network(2, log=log, store=store, reopen=lambda: SqliteLog(folder / "social.db", "social"))
        self.run(savepoint="lunch")
        self.run()

    def run(self, savepoint: str = "", app: App | None = None) -> None:
        owner = self.network.start(app=app, snapshot_every=2)
        for partition in (0, 1):
            for nth in range(3):
                self.send(owner, self.network.key_in(partition, nth))
        owner.stop(savepoint=savepoint)
        self.digests = {p: self.network.replayed(p).digest() for p in (0, 1)}

    def send(self, owner: Owner, key: str) -> None:
        self.network.send(key, Register(name="somebody"))
        self.network.send(key, Publish(text="hello"))
        self.network.settle(owner)

    def newest(self) -> list[str]:
        return [self.network.store.manifests(p)[0].savepoint for p in (0, 1)]

    def files(self) -> list[Path]:
        return sorted((self.folder / "social.db-snapshots").rglob("*"))


@pytest.fixture
def story(tmp_path: Path):
    made = Story(tmp_path)
    yield made
    made.network.close()


@pytest.fixture
def restore(engram: Engram, story: Story) -> Callable[..., object]:
    def run(name: str, *more: object):
        return engram("snapshot", "restore-from", SOCIAL, name, "--log", story.url, *more)

    return run


def test_the_next_start_begins_from_the_savepoint_and_comes_to_the_same(restore, story: Story):
    """What is newer is set aside, not deleted; the records after it are replayed, and the state is as it was."""
    before = {path.with_suffix("") for path in story.files()}
    said = restore("lunch", "--json")

    content = json.loads(said.stdout)
    assert story.newest() == ["lunch", "lunch"]
    assert {path.with_suffix("") for path in story.files()} == before
    assert len([path for path in story.files() if path.suffix == ".aside"]) == len(content["aside"]) > 1
    owner = story.network.start()
    assert sum(p.replayed for p in owner.shard.status().partitions) == 12
    assert {p: owner.partition(p).digest for p in (0, 1)} == story.digests


def test_run_from_a_savepoint_does_the_same_first(engram: Engram, story: Story, java: Java):
    """Before Spark is started, which this Java cannot do."""
    java("17.0.1")
    said = engram("run", SOCIAL, "--log", story.url, "--port", 0, "--from", "lunch")

    assert "The next start begins from savepoint lunch and replays " in said.stdout
    assert "Spark did not start" in said.stderr
    assert story.newest() == ["lunch", "lunch"]


def test_run_from_an_unknown_savepoint_is_refused(engram: Engram, story: Story, java: Java):
    """As `restore-from` refuses it."""
    java("17.0.1")

    said = sentence(engram("run", SOCIAL, "--log", story.url, "--port", 0, "--from", "dinner"), 2)
    assert said == "There is no savepoint dinner. There are: lunch."


def test_it_says_what_will_be_replayed(restore, story: Story):
    """In one sentence, and a second time there is nothing left to set aside."""
    records = sum(story.network.log.end(p) - story.network.store.savepoint(p, "lunch").offset for p in (0, 1))

    assert f"begins from savepoint lunch and replays {records} records. " in restore("lunch").stdout
    assert "0 newer snapshots were set aside" in restore("lunch").stdout


def test_an_unknown_savepoint_is_refused_with_those_there_are(restore, story: Story):
    """Nothing is touched."""
    before = story.files()

    assert sentence(restore("dinner"), 2) == "There is no savepoint dinner. There are: lunch."
    assert story.files() == before


def test_a_savepoint_of_some_partitions_is_refused(restore, story: Story):
    """A start would go on from two places that have nothing to do with each other."""
    story.network.store.remove(story.network.store.savepoint(1, "lunch"))

    assert sentence(restore("lunch"), 2).startswith("Savepoint lunch is of 1 of 2 partitions: 1 have none.")


def test_a_log_that_ends_before_the_savepoint_is_refused_with_both_numbers(
    engram: Engram, story: Story, tmp_path: Path
):
    """Such as an older copy of the log."""
    SqliteLog(tmp_path / "older.db", "social", partitions=2, create=True).close()
    place = story.folder / "social.db-snapshots"
    said = sentence(
        engram(
            "snapshot",
            "restore-from",
            SOCIAL,
            "lunch",
            "--log",
            f"sqlite:{tmp_path / 'older.db'}",
            "--snapshots",
            place,
        ),
        2,
    )

    assert said == (
        f"Partition 0 of the log ends at record 0, but the savepoint is of record "
        f"{story.network.store.savepoint(0, 'lunch').offset}: the log was cut, or is an older copy."
    )


def test_records_of_another_version_after_it_are_refused(restore, story: Story):
    """Version 2 has handled records since: version 1 would make something else of them."""
    envelope = Envelope("register", 1, story.network.key_in(0, 9), b'{"name":"Ada"}', "s", 0)
    story.network.log.append(
        [
            Entry(0, Kind.EPOCH, 1, encode_epoch(Epoch(owner="x", app_version=2))),
            Entry(0, Kind.COMMANDS, 2, encode_commands([envelope], "w")),
        ]
    )
    before = story.files()

    said = sentence(restore("lunch"), 2)
    assert (
        "This is version 1 of social, but 1 records of partition 0 after savepoint lunch were handled by version 2"
        in said
    )
    assert story.files() == before


def test_a_damaged_savepoint_is_refused(restore, story: Story):
    """It is read back before anything newer is set aside."""
    manifest = story.network.store.savepoint(0, "lunch")
    part = story.folder / "social.db-snapshots" / "social" / "partition-0000" / manifest.parts[0].name
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    before = story.files()

    assert "checksum" in sentence(restore("lunch"), 2)
    assert story.files() == before


def test_it_is_refused_while_the_app_runs(engram: Engram, running: RunningApp):
    """A shard that answers says that it has the partition."""
    engram("snapshot", "take", "--name", "now", "--url", running.url)
    place = running.folder / "snapshots"
    log = f"sqlite:{running.folder / 'log.db'}"
    said = engram("snapshot", "restore-from", "tests.serving.counter:app", "now", "--log", log, "--snapshots", place)

    assert sentence(said, 2).startswith("counters is running: shard 0 (process ")


def test_a_savepoint_is_shown_in_every_partition(engram: Engram, story: Story):
    """Its parts, its types with their versions, and what else is in it; an ordinary one by its place."""
    said = engram("snapshot", "show", SOCIAL, "lunch", "--log", story.url, "--json")
    newest = story.network.store.manifests(1)[0]
    one = engram("snapshot", "show", SOCIAL, f"1:{newest.offset}", "--log", story.url)

    details = [json.loads(line) for line in said.stdout.splitlines()]
    assert [(d["partition"], d["savepoint"], d["entities"]) for d in details] == [(0, "lunch", 3), (1, "lunch", 3)]
    assert all(d["types"] == [{"entity": "user", "version": 3, "count": 3}] for d in details)
    assert all(d["digest"] and len(d["files"]) == 2 for d in details)
    assert f"Partition 1, up to record {newest.offset}\n" in one.stdout
    assert "3 user, version 3" in one.stdout


def test_an_unknown_snapshot_is_refused_with_the_savepoints_there_are(engram: Engram, story: Story):
    """And says where to find the others."""
    said = sentence(engram("snapshot", "show", SOCIAL, "dinner", "--log", story.url), 2)

    assert "There is no snapshot dinner in " in said
    assert "(lunch), or PARTITION:OFFSET as `engram snapshot list` has them." in said


def test_savepoints_are_listed_by_their_names(engram: Engram, story: Story):
    """The list has a column for them."""
    listed = json.loads(engram("snapshot", "list", SOCIAL, "--log", story.url, "--json").stdout)

    assert [row["savepoint"] for row in listed if row["savepoint"]] == ["lunch", "lunch"]


def test_a_savepoint_is_removed(engram: Engram, story: Story):
    """From all partitions; the newest snapshots are as they were."""
    newest = [story.network.store.manifests(p)[0] for p in (0, 1)]
    said = engram("snapshot", "remove", SOCIAL, "lunch", "--log", story.url)

    assert said.stdout == "Savepoint lunch of 2 partitions is removed.\n"
    assert [story.network.store.savepoint(p, "lunch") for p in (0, 1)] == [None, None]
    assert [story.network.store.read(manifest).manifest for manifest in newest] == newest
    assert "There is no savepoint lunch" in sentence(
        engram("snapshot", "remove", SOCIAL, "lunch", "--log", story.url), 2
    )


def test_the_newest_snapshot_is_not_removed(engram: Engram, story: Story):
    """It is what the next start, of this version or the next, begins with."""
    story.run(savepoint="dinner")
    before = story.files()

    said = sentence(engram("snapshot", "remove", SOCIAL, "dinner", "--log", story.url), 2)
    assert said.startswith("Savepoint dinner is the newest snapshot of partition 0, and a start begins with it")
    assert story.files() == before
