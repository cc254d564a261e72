"""Made the golden files, each with the code of its version, once. It is kept to show how, and for new ones.

    python -m tests.golden.make log-v4.jsonl image-v4.json snapshots-v4

It never writes over a file that is there: what an old version wrote cannot be written again by a newer Engram, and that
is the point of keeping it. A new form of records or snapshots gets new files; the old ones stay, and stay readable.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from engram.codec.codec import Codec
from engram.codec.record import (
    Envelope,
    Epoch,
    Kind,
    Origin,
    PlainHeader,
    encode_commands,
    encode_epoch,
    encode_messages,
    encode_plain,
)
from engram.image.contents import columns_of
from engram.image.image import Image
from engram.log.base import Entry
from engram.log.partitioner import partition_of
from engram.log.sqlite import FORMAT, SqliteLog
from engram.model.app import App
from engram.snapshots.base import Contents
from engram.snapshots.files import FileSnapshots, FileStorage
from engram.snapshots.parted import PartedSnapshots

from tests.golden import before, network

HERE = Path(__file__).parent
APPS = {1: before.app1, 2: before.app2, 3: network.app}
PARTITIONS = 2
START = 1_700_000_000_000  # the time of the first record, in milliseconds
HOUR = 3_600_000


class Story:
    """A network of one version, from its first record on: what it does is the same in every version."""

    def __init__(self, app: App, log: SqliteLog) -> None:
        self.app, self.log = app, log
        self.codec = Codec(app)
        self.images = [Image(partition, self.codec) for partition in range(PARTITIONS)]
        self.time = START
        self.sequence = 0
        for partition in range(PARTITIONS):
            epoch = Epoch(owner="golden", app_version=app.version, address="ipc://golden")
            self._append(partition, Kind.EPOCH, encode_epoch(epoch))

    def first(self) -> None:
        """What is in the image that is kept: users, a post, one that waits, one that failed, a pin, a follower."""
        self.send("ada", "register", self._name("Ada", "Lovelace"))
        self.send("bob", "register", self._name("Bob", "Dylan"), idempotency_key="once")
        self.send("cleo", "register", self._name("Cleopatra", ""))
        self.send("ada", "publish", {"post": self._post("first", 10)})
        self.send("ada", "publish_later", {"post": self._post("later", 20)})
        self.send("bob", "publish", {"post": self._post("", 30)})
        self.send("bob", "pin", {"under": "top", "post": self._post("pinned", 40)})
        self.send("bob", "pin", {"under": "none", "post": None})
        self.send("ada", "follow", {"whom": "bob"})
        self.send("cleo", "follow", {"whom": "ada"})

    def second(self) -> None:
        """What comes after it: the post that waited, others, one from a stranger who writes to Kafka."""
        self.time += HOUR
        for partition in range(PARTITIONS):
            self._append(partition, Kind.TICK, b"")
        self.send("bob", "publish", {"post": self._post("second", 50)})
        self.send("bob", "follow", {"whom": "ada"})
        cls = self.app.commands["publish"]
        header = PlainHeader(name="publish", version=str(self.codec.version_of(cls)), key="cleo")
        body = json.dumps({"post": self._post("plain", 60)}).encode()
        self._append(partition_of("cleo", PARTITIONS), Kind.PLAIN, encode_plain(header, body))

    def send(self, key: str, name: str, body: dict[str, Any], *, idempotency_key: str | None = None) -> None:
        cls = self.app.commands[name]
        encoded = self.codec.encode_body(cls.model_validate(body))
        version = self.codec.version_of(cls)
        envelope = Envelope(name, version, key, encoded, "golden", self.sequence, idempotency_key)
        self.sequence += 1
        self._append(partition_of(key, PARTITIONS), Kind.COMMANDS, encode_commands([envelope], "golden"))

    def _append(self, partition: int, kind: Kind, payload: bytes, origin: Any = None) -> None:
        self.time += 1000
        self.log.append([Entry(partition, kind, self.time, payload, origin)])
        image = self.images[partition]
        for record in self.log.read(partition, image.offset, limit=10):
            handled = image.handle(record)
            self.log.append([], handled.events)
            for message in handled.messages:
                target = partition_of(message.key, PARTITIONS)
                payload = encode_messages([message], partition)
                self._append(target, Kind.MESSAGES, payload, (partition, Origin(*message.origin)))

    def _name(self, first: str, last: str) -> dict[str, Any]:
        if self.app.version == 3:
            return {"first_name": first, "last_name": last}
        return {"name" if self.app.version == 1 else "display_name": f"{first} {last}".strip()}

    def _post(self, text: str, second: int) -> dict[str, Any]:
        at = START // 1000 + second
        return {"text": text, "at": at if self.app.version < 3 else datetime.fromtimestamp(at, UTC).isoformat()}


def dump_log(log: SqliteLog) -> str:
    """A log as text: a line about it, one for each record, one for each event."""
    lines: list[dict[str, Any]] = [{"app": log.app, "format": FORMAT, "partitions": log.partitions}]
    for partition in range(log.partitions):
        records = log.read(partition, 0, limit=1000)
        lines += [{**record._asdict(), "payload": record.payload.decode()} for record in records]
    for partition in range(log.partitions):
        events = log.events(partition, after=(-1, 0, 0), limit=1000)
        lines += [{"event": {**event._asdict(), "body": event.body.decode()}} for event in events]
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def contents_of(image: Image) -> Contents:
    frozen = image.begin_freeze()
    while frozen.advance(1000):
        pass
    image.end_freeze()
    # Where the code lay, and its line numbers, are of no use to anybody.
    quarantine = [row._replace(traceback="") for row in frozen.memory.quarantine]
    memory = frozen.memory.model_copy(update={"quarantine": quarantine})
    return Contents(columns_of(sorted(frozen.rows)), memory, len(frozen.rows))


def dump_images(images: list[Image]) -> str:
    """What snapshots of these images hold, as text, whatever files they are in."""
    dumped = []
    for image in images:
        contents = contents_of(image)
        rows = [{**row._asdict(), "state": row.state.decode()} for row in contents.entities]
        memory = contents.memory.model_dump(mode="json")
        dumped.append({"partition": image.partition, "entities": rows, "memory": memory})
    return json.dumps(dumped, indent=1, ensure_ascii=False) + "\n"


def snapshot_files(images: list[Image], folder: Path, name: str) -> dict[str, bytes]:
    """Snapshots of these images, as the files that they are, by their paths in `name`."""
    store = FileSnapshots(folder / name, "network")
    for image in images:
        store.publish(image.partition, contents_of(image), created=START)
    return _files(folder, name)


def chained_files(images: list[Image], folder: Path, name: str) -> dict[str, bytes]:
    """The same with a savepoint a record before, from which the snapshot goes on: no entity has changed since."""
    store = FileSnapshots(folder / name, "network")
    for image in images:
        whole = contents_of(image)
        memory = whole.memory.model_copy(update={"offset": whole.memory.offset - 1})
        base = store.publish(image.partition, whole._replace(memory=memory, savepoint="before"), created=START)
        store.publish(image.partition, whole._replace(columns=[], base=base), created=START)
    return _files(folder, name)


def sliced_files(images: list[Image], folder: Path, name: str) -> dict[str, bytes]:
    """Snapshots of more than one slice, with rows, and one that goes on from each: all of them have a digest."""
    store = PartedSnapshots(FileStorage(folder / name / "network"), "network", slice_bytes=100)
    for image in images:
        whole = contents_of(image)
        rows = [c._replace(rows=[b"{}"] * len(c.keys)) for c in whole.columns]
        memory = whole.memory.model_copy(update={"offset": whole.memory.offset - 1})
        base = store.publish(image.partition, whole._replace(columns=rows, memory=memory), created=START)
        some = [c._replace(keys=c.keys[:1], states=c.states[:1]) for c in whole.columns]
        store.publish(image.partition, whole._replace(columns=some, base=base), created=START)
    return _files(folder, name)


def _files(folder: Path, name: str) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in (folder / name).rglob("*") if path.is_file()}


def make(version: int) -> dict[str, bytes]:
    """All files of a version, by name."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "log.db"
        log = SqliteLog(path, "network", partitions=PARTITIONS, create=True)
        story = Story(APPS[version], log)
        story.first()
        images = dump_images(story.images)
        snapshots = snapshot_files(story.images, Path(folder), f"snapshots-v{version}")
        chained = chained_files(story.images, Path(folder), f"snapshots-v{version}-chained")
        sliced = sliced_files(story.images, Path(folder), f"snapshots-v{version}-sliced")
        story.second()
        text = dump_log(log)
        log.close()
        return {
            f"log-v{version}.jsonl": text.encode(),
            f"log-v{version}.db": path.read_bytes(),
            f"image-v{version}.json": images.encode(),
            **snapshots,
            **chained,
            **sliced,
        }


def main(wanted: list[str]) -> None:
    there = {path.name for path in HERE.iterdir() if path.is_dir()}
    for version in APPS:
        for name, data in make(version).items():
            top = name.partition("/")[0]
            if top in wanted and (top == name or top not in there):
                (HERE / name).parent.mkdir(parents=True, exist_ok=True)
                with (HERE / name).open("xb") as file:  # never over one that is there
                    file.write(data)
                sys.stdout.write(f"made {name}, {len(data):,} bytes\n")


if __name__ == "__main__":
    main(sys.argv[1:])
