"""The log, state, events, replies and read models as DataFrames, on a real Spark, over both logs."""

from __future__ import annotations

import json
import re
import secrets
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engram.dev.kafka import Brokers
from engram.errors import Misuse
from engram.log.stream import id_of
from engram.spark.problems import told_shortly
from engram.spark.spark import Spark

from tests.spark.quick import QUICK
from tests.spark.story import PEOPLE, SOCIAL, Story

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spark]:
    log_file = tmp_path_factory.mktemp("spark") / "spark.log"
    with Spark(name="frames", master="local[2]", slots=1, log_file=log_file, settings=QUICK) as spark:
        yield spark


@pytest.fixture(scope="module", params=["sqlite", "kafka"])
def story(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """The app has lived, and was killed: there are snapshots, and records after the last."""
    folder = tmp_path_factory.mktemp("story")
    made = Story(folder, _url(request, folder))
    made.live(savepoint="noon")
    made.live(people=PEOPLE[:6], kill=True)
    yield made
    made.close()


def _url(request: pytest.FixtureRequest, folder: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:{folder / 'log.db'}"
    brokers: Brokers = request.getfixturevalue("kafka")
    return brokers.url(f"frames-{secrets.token_hex(4)}")


def read(spark: Spark, story: Story, form: str, **options: Any) -> Any:
    where = {"app": SOCIAL, "log": story.url, "snapshots": story.snapshots, **options}
    return spark.session.read.format(form).options(**where).load()


def rows(frame: Any) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in frame.collect()]


def test_the_log_has_a_row_for_every_command_and_every_other_record(spark: Spark, story: Story):
    """With its place, its key and its body as it lies there; what clients sent has a session, messages an origin."""
    found = rows(read(spark, story, "engram.log"))

    places = [(row["partition"], row["offset"], row["index"]) for row in found]
    assert len(set(places)) == len(places)
    ends = {p: max(row["offset"] for row in found if row["partition"] == p) + 1 for p in (0, 1)}
    assert ends == {p: story.log.end(p) for p in (0, 1)}
    of_clients = [row for row in found if row["session"] is not None]
    assert len(of_clients) == story.sent
    assert Counter(row["kind"] for row in of_clients) == {"commands": story.sent}
    register = next(row for row in found if row["name"] == "register" and row["key"] == "user7")
    assert json.loads(register["body"]) == {"name": "User7"}
    assert register["position"] == f"{register['partition']}:{register['offset']}.{register['index']}"
    assert (register["entity"], register["version"], register["problem"]) == ("user", "1", None)
    messages = [row for row in found if row["kind"] == "messages"]
    assert messages
    assert all(row["origin"] and row["session"] is None for row in messages)
    assert json.loads(next(row["body"] for row in found if row["kind"] == "epoch"))["app_version"] == 1


def test_without_the_classes_the_log_and_snapshots_can_be_read_too(spark: Spark, story: Story):
    """By the app's name alone: entity types of commands are not known then, and states are JSON text."""
    log = read(spark, story, "engram.log", app="social")
    state = read(spark, story, "engram.state", app="social")

    assert log.where("entity is not null").count() == 0
    found = rows(state.where("entity = 'user'"))
    assert {row["key"] for row in found} == {*PEOPLE}
    assert json.loads(next(row["state"] for row in found if row["key"] == "user3"))["name"] == "User3"


def left_to_spark(frame: Any) -> list[str]:
    """What Spark looks at again in every row that it gets: the left sides of conditions that were not taken from it."""
    plan = frame._jdf.queryExecution().executedPlan().toString()
    (condition,) = re.findall(r"Filter (.+)$", plan, re.MULTILINE)
    return [each.strip("()").partition("#")[0] for each in condition.split(" AND ") if "isnotnull(" not in each]


def test_filters_are_pushed_down_and_change_nothing(spark: Spark, story: Story):
    """On partition, offset, time, entity, name and key: the same rows as without pushing down; but for the time, Spark
    does not look again."""
    frame = read(spark, story, "engram.log")
    everything = rows(frame)
    middle = sorted(row["time"] for row in everything if row["time"] is not None)[len(everything) // 2]
    tests = {
        "partition = 1 and offset between 2 and 5": lambda r: r["partition"] == 1 and 2 <= r["offset"] <= 5,
        "partition in (0) and offset > 3": lambda r: r["partition"] == 0 and r["offset"] > 3,
        "entity = 'user' and name in ('follow', 'publish')": lambda r: r["name"] in ("follow", "publish"),
        f"time > '{middle}' and key = 'user1'": lambda r: r["time"] and r["time"] > middle and r["key"] == "user1",
        f"time <= '{middle}' and offset in (1, 3)": lambda r: (
            r["time"] and r["time"] <= middle and r["offset"] in (1, 3)
        ),
    }
    for condition, expected in tests.items():
        chosen = frame.where(condition)
        assert sorted(map(str, rows(chosen))) == sorted(str(r) for r in everything if expected(r)), condition
        assert left_to_spark(chosen) == (["time"] if "time" in condition else []), condition
    assert frame.where("partition = 1 and offset between 2 and 5").rdd.getNumPartitions() == 1
    assert left_to_spark(frame.where("length(key) = 5")) == ["length(key"]


def test_a_partition_of_the_log_is_read_by_as_many_tasks_as_wanted(spark: Spark, story: Story):
    """Each with as many records as `recordsPerTask` says, and all of them together once."""
    frame = read(spark, story, "engram.log")
    parted = read(spark, story, "engram.log", recordsPerTask=3)
    records = [story.log.end(p) - story.log.start(p) for p in (0, 1)]

    assert frame.rdd.getNumPartitions() == 2
    assert parted.rdd.getNumPartitions() == sum(-(-count // 3) for count in records) > 4
    assert sorted(map(str, rows(parted))) == sorted(map(str, rows(frame)))


def test_events_are_those_of_the_log(spark: Spark, story: Story):
    """Each once, with its id, cause and root."""
    log = story.network._reopen()
    expected = {id_of(e): (e.name, e.key) for p in (0, 1) for e in log.events(p, after=(-1, 0, 0), limit=10_000)}
    log.close()
    found = rows(read(spark, story, "engram.events"))

    assert {row["id"]: (row["name"], row["key"]) for row in found} == expected
    assert len(found) == len(expected) > 50
    assert all(row["id"].startswith(row["cause"] + ".") and row["root"] for row in found)


def test_replies_come_from_handling_the_log_again(spark: Spark, story: Story):
    """One for every command of a client: replies, and rejections with their codes; from a snapshot on if only the
    newest are asked for."""
    replies = read(spark, story, "engram.replies")
    found = rows(replies)

    assert len(found) == story.sent
    verdicts = Counter((row["name"], row["verdict"], row["code"]) for row in found)
    assert verdicts["register", "reply", None] == len(PEOPLE)
    assert verdicts["register", "rejected", "already_registered"] == 6
    assert verdicts["follow", "rejected", "self_follow"] == len(PEOPLE) + 6
    late = rows(replies.where("partition = 0 and offset >= 12"))
    assert late == [row for row in found if row["partition"] == 0 and row["offset"] >= 12]


def test_state_has_typed_columns_of_the_apps_types(spark: Spark, story: Story):
    """Dates are timestamps, dicts are maps, lists are arrays, parts are structs; as of the log's end."""
    users = read(spark, story, "engram.state", entity="user")
    image = {p: story.network.replayed(p) for p in (0, 1)}
    expected = {key: user for p in (0, 1) for key, user in image[p].entities["user"].items()}
    found = {row["key"]: row for row in rows(users)}

    assert found.keys() == expected.keys()
    for key, user in expected.items():
        row = found[key]
        assert row["name"] == user.name
        assert row["following"].keys() == user.following.keys()
        assert row["followers"] == list(user.followers)
        assert [(e["author"], e["text"]) for e in row["timeline"]] == [(e.author, e.text) for e in user.timeline]
        assert {k: p["text"] for k, p in row["posts"].items()} == {k: p.text for k, p in user.posts.items()}
        assert row["_offset"] == story.log.end(row["_partition"])
    assert users.schema["since"].dataType.simpleString() == "timestamp"
    assert rows(users.where("key = 'user2'")) == [found["user2"]]


def test_state_is_there_as_of_a_time_a_position_a_savepoint_and_the_newest_snapshots(spark: Spark, story: Story):
    """Nobody had followed anybody a minute after the first registrations; the savepoint has what there was then."""

    def following(at: str) -> int:
        users = read(spark, story, "engram.state", entity="user", at=at)
        return sum(len(row["following"]) for row in rows(users))

    first = story.network.clock.now - 4 * 60_000  # the clock was moved four times
    log = rows(read(spark, story, "engram.log").where("name = 'register'"))
    assert following(f"{min(row['time'] for row in log).isoformat()}") == 0
    assert following("noon") == len(PEOPLE) * 4 - 6 - len(PEOPLE)
    assert following("end") == following("noon")  # those of the second life were there already
    assert following("snapshot") <= following("end")
    place = next(row for row in log if row["key"] == "user1")
    assert following(f"{place['partition']}:{place['offset']}") == 0
    assert first > 0


def test_the_rows_of_read_models_are_there(spark: Spark, story: Story):
    """A ranking has boards and scores, a tally groups and numbers, a search words and typed rows."""
    ranking = rows(read(spark, story, "engram.rows", model="most_followed"))
    found = rows(read(spark, story, "engram.rows", model="post_search").where("of = 'user5'"))

    image = {p: story.network.replayed(p) for p in (0, 1)}
    followers = {k: len(u.followers) for p in (0, 1) for k, u in image[p].entities["user"].items() if u.followers}
    assert {row["row"]: row["score"] for row in ranking} == followers
    assert {row["board"] for row in ranking} == {"everybody"}
    assert {row["row"]["author"] for row in found} == {"user5"}
    assert found[0]["words"].startswith("hello from user5")


# Streams


@pytest.fixture(params=["sqlite", "kafka"])
def young(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Story]:
    """A story of its own for a test that goes on with it."""
    made = Story(tmp_path, _url(request, tmp_path))
    made.live(people=PEOPLE[:8])
    yield made
    made.close()


def follow(spark: Spark, story: Story, form: str, folder: Path, **options: Any) -> int:
    """What a Structured Streaming job does that takes all there is and ends: in how many batches."""
    where = {"app": "social", "log": story.url, **options}
    stream = spark.session.readStream.format(form).options(**where).load()
    place = folder / form
    query = (
        stream.writeStream.format("parquet")
        .option("path", str(place / "rows"))
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    return len({progress.batchId for progress in query.recentProgress if progress.numInputRows})


def test_a_stream_goes_on_where_it_stopped(spark: Spark, young: Story, tmp_path: Path):
    """Two runs with the same checkpoint, and the app between them: every row of the log and every event is there once,
    in small batches too."""
    batches = follow(spark, young, "engram.log", tmp_path, recordsPerBatch=16)
    follow(spark, young, "engram.events", tmp_path)
    young.live(people=PEOPLE[8:12])
    follow(spark, young, "engram.log", tmp_path, recordsPerBatch=16)
    follow(spark, young, "engram.events", tmp_path)

    for form, place in (("engram.log", ("partition", "offset", "index")), ("engram.events", ("id",))):
        streamed = spark.session.read.parquet(str(tmp_path / form / "rows"))
        read_at_once = read(spark, young, form, app="social")
        found = sorted(map(str, streamed.select(*place).collect()))
        assert found == sorted(map(str, read_at_once.select(*place).collect()))
        assert len(found) > 50
    assert batches > 1


def test_the_checkpoint_of_another_log_is_refused(spark: Spark, tmp_path: Path):
    """A stream never goes on in a log that it was not in: one sentence says so."""
    story = Story(tmp_path, f"sqlite:{tmp_path / 'log.db'}")
    other = Story(tmp_path, f"sqlite:{tmp_path / 'other.db'}", partitions=3)
    follow(spark, other, "engram.log", tmp_path)
    story.close()
    other.close()

    with (
        pytest.raises(
            Misuse, match=r"The checkpoint is of app social with 3 partitions, and the log is of social with 2"
        ),
        told_shortly(),
    ):
        follow(spark, story, "engram.log", tmp_path)
