"""`engram rebuild` as Spark tasks, one for each partition: survey, rebuild, install."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

from engram.clock import system_clock
from engram.codec.codec import Codec
from engram.errors import Corrupt
from engram.log.open import open_log
from engram.model.effects import Place
from engram.shard.garbage import collect_rarely
from engram.shard.rebuild import Rebuild, Rebuilt
from engram.shard.reference import resolve_app
from engram.shard.survey import Survey, survey
from engram.snapshots.open import open_storage, open_store
from engram.snapshots.parted import PartedSnapshots
from engram.spark.progress import Tell

# Only the newest is ever gone on from.
_KEEP_WORK = 1
# Those of the app are set aside where they are in the way, and never removed.
_KEEP_ALL = 1_000_000


class Stretch(NamedTuple):
    """A partition up to record `end`, and what of it has arrived elsewhere: see `Rebuild.arrived`."""

    partition: int
    end: int
    arrived: Mapping[int, Place] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildJob:
    """Where everything is. Travels to the executors. `anew`: this code decides what the log means, whatever the app's
    own snapshots say."""

    reference: str
    log: str
    snapshots: str
    every: int
    anew: bool = False

    @property
    def work(self) -> str:
        """Where rebuilt snapshots are until all of them are there: those of another version are no use to go on from,
        nor those that were compared where nobody is to compare. No app can have such a name."""
        version = resolve_app(self.reference).version
        return f"{self.snapshots.rstrip('/')}/rebuild.work/{version}{'-anew' if self.anew else ''}"

    def survey(self, partition: int, tell: Tell) -> Survey:
        with closing(open_log(self.log, resolve_app(self.reference).name)) as log:
            return survey(log, partition, tell=tell)

    def rebuild(self, stretch: Stretch, tell: Tell) -> Rebuilt:
        app = resolve_app(self.reference)
        collect_rarely()
        with closing(open_log(self.log, app.name)) as log:
            return Rebuild(
                partition=stretch.partition,
                end=stretch.end,
                codec=Codec(app),
                log=log,
                work=self._open(app.name, self.work, keep=_KEEP_WORK),
                clock=system_clock,
                every=self.every,
                arrived=stretch.arrived,
                own=None if self.anew else self._open(app.name, self.snapshots, keep=_KEEP_ALL),
                tell=tell,
            ).run()

    def install(self, rebuilt: Rebuilt, tell: Tell) -> int:
        """Publishes a rebuilt snapshot where the app starts from; how many of the app's own were set aside."""
        app = resolve_app(self.reference)
        own = self._open(app.name, self.snapshots, keep=_KEEP_ALL)
        loaded = self._open(app.name, self.work, keep=_KEEP_WORK).newest(rebuilt.partition)
        if loaded is None or loaded.manifest.digest != rebuilt.digest:
            raise Corrupt(f"The rebuilt snapshot of partition {rebuilt.partition} is not there any more: run it again.")
        before = own.manifests(rebuilt.partition)
        same = [m for m in before if (m.offset, m.digest) == (rebuilt.offset, rebuilt.digest)]
        if not same:
            own.publish(rebuilt.partition, loaded.contents, created=system_clock())
        others = [m for m in before if m not in same and (self.anew or m.offset > rebuilt.offset)]
        for manifest in others:
            own.set_aside(manifest)
        tell(1, 1)
        return len(others)

    def clear(self) -> None:
        """Removes the work of an earlier run, or of this one."""
        storage = open_storage(self.work, resolve_app(self.reference).name)
        for name in storage.names(""):
            storage.remove(name)

    def _open(self, app: str, url: str, *, keep: int) -> PartedSnapshots:
        return open_store(url, app, keep=keep)
