"""A small history of the social network, on a real log with snapshots: registrations, follows, posts, rejections."""

from __future__ import annotations

from pathlib import Path

from engram import App
from engram.codec.record import Envelope
from engram.log.base import Log
from engram.log.open import open_log
from engram.snapshots.files import FileSnapshots

from sample_apps.social import app as social
from sample_apps.social.commands import Follow, Like, Publish, Register
from sample_apps.social.rules import BanWord
from tests.shard.network import Network

SOCIAL = "sample_apps.social:app"
PEOPLE = [f"user{number}" for number in range(24)]


class Story:
    """`network.store` is a folder of snapshots; the log is at `url`, with two partitions."""

    def __init__(self, folder: Path, url: str, *, app: App = social, partitions: int = 2) -> None:
        self.url = url
        self.snapshots = str(folder / "snapshots")
        log = open_log(url, app.name, partitions=partitions, create=True)
        store = FileSnapshots(folder / "snapshots", app.name)
        self.network = Network(app=app, log=log, store=store, reopen=lambda: open_log(url, app.name))
        self.sent = 0
        self._opened: list[Log] = [log]

    @property
    def log(self) -> Log:
        return self.network.log

    def live(self, *, savepoint: str = "", kill: bool = False, people: list[str] = PEOPLE) -> None:
        """The app runs for a while, with a snapshot every now and then, and ends with one, or is killed."""
        owner = self.network.start(snapshot_every=20)
        self._say([self.network.envelope("*", BanWord(word=f"word{self.sent}"))])
        self._say([self.network.envelope(key, Register(name=key.title())) for key in people])
        self.network.settle(owner)
        self.network.clock.now += 60_000
        pairs = [(a, b) for number, a in enumerate(people) for b in people[number : number + 4]]
        self._say([self.network.envelope(a, Follow(whom=b)) for a, b in pairs])  # nobody follows themselves
        self.network.settle(owner)
        self.network.clock.now += 60_000
        self._say([self.network.envelope(key, Publish(text=f"hello from {key} #{key}")) for key in people])
        self._say([self.network.envelope(key, Like(author="nobody", post="p")) for key in people[:3]])
        self.network.settle(owner)
        if kill:
            owner.kill()
        else:
            owner.stop(savepoint=savepoint)

    def _say(self, envelopes: list[Envelope]) -> None:
        self.network.send_all(envelopes)
        self.sent += len(envelopes)

    def digests(self) -> dict[int, str]:
        return {p: self.network.replayed(p).digest() for p in range(self.log.partitions)}

    def close(self) -> None:
        self.network.close()
        for log in self._opened:
            log.close()
