"""Places for logs, on SQLite and on a real Kafka, and a town that has lived there for a while."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

from engram.dev.kafka import Brokers
from engram.image.image import Image
from engram.log.open import open_log
from engram.snapshots.files import FileSnapshots

from tests.reshape.town import KEYS, Person, Rules, Tell, app
from tests.shard.network import Network
from tests.shard.societies import come_to_rest

REFERENCE = "tests.reshape.town:app"


def program(number: int) -> list[Any]:
    """What a command leads to: messages to many, alarms, rules, events and failures."""
    sends = [
        ["send", key, [["send", key + 1, [["emit"]]], ["wait", 3000, [["rule", 0]]]]] for key in (number, number + 5)
    ]
    return [*sends, ["wait", 50_000, [["send", 9, [["fail"]]]]], ["rule", 0]][: 1 + number % 4]


class Places:
    """Where a test may make logs: `log("old")` is a URL, `snapshots("old")` the folder of its snapshots."""

    def __init__(self, folder: Path, kafka: Brokers | None) -> None:
        self._folder = folder
        self._kafka = kafka
        self._mark = uuid4().hex[:8]

    def log(self, name: str) -> str:
        return f"sqlite:{self._folder / name}.db" if self._kafka is None else self._kafka.url(f"{name}-{self._mark}")

    def snapshots(self, name: str) -> str:
        return str(self._folder / f"{name}-snapshots")


class Town:
    """The app on a log and a store, in this process."""

    def __init__(self, log: str, snapshots: str, *, partitions: int | None = None) -> None:
        opened = open_log(log, app.name, partitions=partitions, create=partitions is not None)
        self.network = Network(
            app=app,
            log=opened,
            reopen=lambda: open_log(log, app.name),
            store=FileSnapshots(Path(snapshots), app.name),
        )
        self.number = 0

    def tell(self, count: int) -> None:
        for _ in range(count):
            self.number += 1
            key = KEYS[self.number % len(KEYS)]
            self.network.send(key, Tell(what=f"c{self.number}", steps=program(self.number)))

    def live(self, count: int, *, unhandled: int = 0, savepoint: str = "before", turns: int = 3) -> None:
        """Handles some of what is told, and stops cleanly, shard by shard: what the last one sends is left, and what is
        told too late."""
        log = self.network.log
        half = max(1, log.partitions // 2)
        owners = [self.network.start(range(half)), self.network.start(range(half, log.partitions), number=1)]
        self.tell(count)
        for _ in range(turns):
            for owner in owners:
                owner.step()
        owners[0].stop(savepoint=savepoint)
        self.tell(unhandled)
        owners[1].step()
        owners[1].stop(savepoint=savepoint)
        self.tell(unhandled)
        self.close()

    def end(self) -> dict[str, Any]:
        """What has become of everybody when all alarms have rung."""
        owner = self.network.start()
        come_to_rest(self.network, [owner])
        self.network.clock.now += 100_000
        images = come_to_rest(self.network, [owner])
        found = people_of(list(images.values()))
        owner.stop()
        self.close()
        return found

    def close(self) -> None:
        self.network.close()
        with closing(self.network.log):
            pass


def people_of(images: Sequence[Image]) -> dict[str, Any]:
    people = {
        key: dict(person.heard)
        for image in images
        for key in list(image._homes[Person].all_keys())
        if (person := image.find(Person, key)) is not None
    }
    rules = [image.find(Rules, "*") for image in images]
    made = {tuple(sorted([] if one is None else one.made)) for one in rules}
    failed = sorted((row.command, row.key, row.body) for image in images for row in image.quarantine.listed)
    return {"people": people, "rules": made, "failed": failed}
