"""What old versions wrote is read for ever: three versions of a network's user, from golden logs and images."""

from __future__ import annotations

import hashlib
import json
import shutil
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from engram import App, Corrupt, Misuse
from engram.codec.check import check
from engram.codec.codec import Codec
from engram.codec.record import Kind, Record
from engram.codec.schema import schema_of
from engram.image.contents import EntityRow, Memory
from engram.image.image import Image
from engram.log.sqlite import SqliteLog
from engram.snapshots.files import FileSnapshots

from tests.golden import before, network
from tests.golden.make import contents_of
from tests.golden.network import Post, Publish, Published, User

HERE = Path(__file__).parent
CODEC = Codec(network.app)
IMAGES = sorted(path.name for path in HERE.glob("image-v*.json"))


def post(text: str, second: int) -> Post:
    return Post(text, datetime.fromtimestamp(1_700_000_000 + second, UTC))


IN_THE_MIDDLE = {
    "ada": User(key="ada", first_name="Ada", last_name="Lovelace", posts=[post("first", 10)], followers={"cleo": None}),
    "bob": User(
        key="bob",
        first_name="Bob",
        last_name="Dylan",
        pinned={"top": post("pinned", 40), "none": None},
        followers={"ada": None},
    ),
    "cleo": User(key="cleo", first_name="Cleopatra"),
}
AT_THE_END = {
    "ada": User(
        key="ada",
        first_name="Ada",
        last_name="Lovelace",
        posts=[post("first", 10), post("later", 20)],
        followers={"cleo": None, "bob": None},
    ),
    "bob": User(
        key="bob",
        first_name="Bob",
        last_name="Dylan",
        posts=[post("second", 50)],
        pinned={"top": post("pinned", 40), "none": None},
        followers={"ada": None},
    ),
    "cleo": User(key="cleo", first_name="Cleopatra", posts=[post("plain", 60)]),
}
EVENTS = [
    Published(who="bob", post=post("second", 50)),
    Published(who="ada", post=post("first", 10)),
    Published(who="ada", post=post("later", 20)),
    Published(who="cleo", post=post("plain", 60)),
]


def lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (HERE / name).read_text().splitlines()]


def records(name: str) -> list[Record]:
    found = [line for line in lines(name)[1:] if "event" not in line]
    return [
        Record(**{**line, "kind": Kind(line["kind"]), "payload": line["payload"].encode()})  # type: ignore[arg-type]
        for line in found
    ]


def replayed(found: list[Record], images: list[Image] | None = None, codec: Codec = CODEC) -> list[Image]:
    """Images after records; those before the place of an image are left out."""
    images = images or [Image(partition, codec) for partition in range(2)]
    for record in found:
        if record.offset >= images[record.partition].offset:
            images[record.partition].handle(record)
    return images


def restored(name: str) -> list[Image]:
    images = []
    for dumped in json.loads((HERE / name).read_text()):
        rows = [EntityRow(**{**row, "state": row["state"].encode()}) for row in dumped["entities"]]
        image = Image(dumped["partition"], CODEC)
        image.load(rows, Memory.model_validate_json(json.dumps(dumped["memory"])))
        images.append(image)
    return images


def users(images: list[Image]) -> dict[str, Any]:
    """All users, as a snapshot of today would bring them back."""
    keys = sorted({row.key for image in images for row in contents_of(image).entities})
    found = {key: image.find(User, key) for key in keys for image in images if image.find(User, key)}
    version = CODEC.version_of(User)
    return {key: CODEC.decode_entity("user", version, CODEC.encode_entity(found[key])) for key in sorted(found)}


def test_the_files_are_those_that_were_made():
    """Nobody may make them fit: every file has the checksum that it had on its first day, and has one."""
    sums = dict(reversed(line.split("  ")) for line in (HERE / "SHA256SUMS").read_text().splitlines())
    data = [path for path in HERE.rglob("*") if path.suffix in (".jsonl", ".json", ".db", ".parquet")]

    assert {str(p.relative_to(HERE)): hashlib.sha256(p.read_bytes()).hexdigest() for p in data} == sums


@pytest.mark.parametrize("version", [1, 2, 3])
def test_an_old_log_is_replayed(version: int):
    """Commands, messages, plain records and timers of every version, with the values in them, give today's users."""
    images = replayed(records(f"log-v{version}.jsonl"))

    assert users(images) == AT_THE_END
    assert [row.command for row in images[0].quarantine.listed] == ["publish"]
    assert not any(len(image.timers) for image in images)


def test_the_logs_of_all_versions_come_to_the_same():
    """The story is the same in each, so the images are too, byte for byte."""
    digests = [[image.digest() for image in replayed(records(f"log-v{version}.jsonl"))] for version in (1, 2, 3)]

    assert digests[0] == digests[1] == digests[2]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_old_events_are_read(version: int):
    """Whoever reads events gets them as they are today."""
    events = [line["event"] for line in lines(f"log-v{version}.jsonl") if "event" in line]

    assert [CODEC.decode_event(e["name"], e["version"], e["body"].encode()) for e in events] == EVENTS


@pytest.mark.parametrize("version", [1, 3])
def test_an_old_log_file_is_opened(version: int, tmp_path: Path):
    """The SQLite file of then has the records and events of then."""
    shutil.copy(HERE / f"log-v{version}.db", tmp_path / "log.db")
    log = SqliteLog(tmp_path / "log.db", "network")
    read = [record for partition in range(log.partitions) for record in log.read(partition, 0, limit=100)]
    events = [event for partition in range(2) for event in log.events(partition, after=(-1, 0, 0), limit=100)]
    log.close()

    assert read == records(f"log-v{version}.jsonl")
    assert [CODEC.decode_event(event.name, event.version, event.body) for event in events] == EVENTS


@pytest.mark.parametrize("name", IMAGES)
def test_an_old_image_is_restored(name: str):
    """Entities come up, and so does what failed or waits, with the values in it."""
    images = restored(name)
    (failed,) = images[0].quarantine.listed
    (timer,) = images[1].timers.all()

    assert users(images) == IN_THE_MIDDLE
    assert CODEC.decode_command(failed.command, failed.version, failed.body.encode()) == Publish(post=post("", 30))
    assert CODEC.decode_command(timer.name, timer.version, timer.body.encode()) == Publish(post=post("later", 20))


@pytest.mark.parametrize("name", IMAGES)
def test_an_old_image_goes_on_with_its_log(name: str):
    """Restored in the middle, and with the rest of the log: the same users as from zero. The old timer fires."""
    log = name.replace("image", "log").replace(".json", ".jsonl")

    assert users(replayed(records(log), restored(name))) == AT_THE_END


@pytest.mark.parametrize("name", ["v1", "v2", "v3", "v3-chained", "v3-sliced"])
def test_old_snapshots_are_loaded(name: str, tmp_path: Path):
    """The files of then are whole, and what is in them comes up: at once, and when it is first touched."""
    shutil.copytree(HERE / f"snapshots-{name}", tmp_path / "snapshots")
    store = FileSnapshots(tmp_path / "snapshots", "network")
    found = [store.newest(partition) for partition in range(2)]
    loaded = [snapshot for snapshot in found if snapshot is not None]
    at_once, lazily = ([Image(partition, CODEC) for partition in range(2)] for _ in range(2))
    for eager, lazy, snapshot in zip(at_once, lazily, loaded, strict=True):
        eager.load(snapshot.contents.entities, snapshot.memory)
        lazy.load_encoded(snapshot.columns, snapshot.memory)

    assert users(at_once) == IN_THE_MIDDLE
    assert [image.digest() for image in lazily] == [image.digest() for image in at_once]
    assert users(replayed(records(f"log-{name[:2]}.jsonl"), lazily)) == AT_THE_END
    assert list(tmp_path.rglob("*.damaged")) == []


@pytest.mark.parametrize(
    ("app", "said"),
    [
        (before.app1, "Register1 is at version 3 there, but this app knows only up to 1: run the newer code"),
        (before.app2, "Register2 is at version 3 there, but this app knows only up to 2: run the newer code"),
    ],
    ids=["version 1", "version 2"],
)
def test_older_code_refuses_the_log_of_newer(app: App, said: str):
    """A downgrade is refused with names and numbers, before anything is touched."""
    with pytest.raises(Corrupt, match=said):
        replayed(records("log-v3.jsonl"), codec=Codec(app))


@pytest.mark.parametrize(
    ("app", "known"), [(before.app1, "User1.* only up to 1"), (before.app2, "User2.* only up to 2")], ids=["1", "2"]
)
def test_older_code_refuses_the_snapshots_of_newer(app: App, known: str):
    """A downgrade is refused when a snapshot is loaded, also where its entities are to stay encoded."""
    store = FileSnapshots(HERE / "snapshots-v3", "network")
    loaded = store.read(store.manifests(0)[0])

    with pytest.raises(Corrupt, match=known.replace(".*", " is at version 3 there, but this app knows")):
        Image(0, Codec(app)).load_encoded(loaded.columns, loaded.memory)
    with pytest.raises(Corrupt, match=known):
        Image(0, Codec(app)).load(loaded.contents.entities, loaded.memory)


def test_older_code_refuses_newer_values():
    """Also where only a value inside of a command is newer: publish is at version 1 in both."""
    newer = next(record for record in records("log-v3.jsonl") if b'"publish"' in record.payload)
    said = "post in Publish is at version 2 there, but this app knows only up to 1: run the newer code"

    with pytest.raises(Corrupt, match=said):
        Codec(before.app2).decode_record(newer)


def test_a_forgotten_upcaster_is_refused():
    """Without any one of its steps the network does not start."""
    every = network.app
    steps = [step for steps in every._steps.values() for step in steps]
    for missing in steps:
        with pytest.raises(Misuse, match=f"{missing.of.__name__} is at version"):
            App(
                "network",
                commands=every.commands.values(),
                events=every.events.values(),
                upcasters=[step for step in steps if step is not missing],
            )


def test_the_way_of_the_network_passes_the_check():
    """From each version to the next, what changed has a version: the schema check refuses nothing."""
    versions = [schema_of(app) for app in (before.app1, before.app2, network.app)]
    found = [check(one, other, {}, draft="") for one, other in pairwise(versions)]

    assert [[finding.text for finding in findings if finding.problem] for findings in found] == [[], []]
    assert [[f"{finding.kind} {finding.name}" for finding in findings] for findings in found] == [
        ["entity user", "command register"],
        ["entity user", "command register", "value post"],
    ]
