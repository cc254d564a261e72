"""A partition's snapshot from its log alone: everything is handled again, and nothing is sent.

A snapshot says that what was sent by then is in the log. So a rebuilt one ends before the first record whose messages
or events are not there yet, if an owner was killed before it could let them out: the next one handles that record
again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from engram.clock import Clock
from engram.codec.codec import Codec
from engram.errors import Corrupt, Misuse
from engram.image.contents import digest_of
from engram.image.image import Handled, Image
from engram.log.base import Log
from engram.log.partitioner import partition_of
from engram.model.effects import OutEvent, Place
from engram.shard.past import dropped
from engram.shard.replay import replay_until
from engram.shard.snapshotting import check_decodable
from engram.snapshots.base import Contents, SnapshotStore
from engram.snapshots.manifest import Manifest

_NOTHING: Place = (-1, 0, 0)
_SLICE = 10_000


class Compared(NamedTuple):
    """A snapshot of the app's own, and whether the rebuilt state was the same there. `problem` says why not."""

    offset: int
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """What came of a partition. `begun` is the record that this run began with, after an earlier one was interrupted;
    `left` how many records before the end are for the next owner to handle again."""

    partition: int
    offset: int
    left: int
    commands: int
    entities: int
    digest: str
    begun: int
    compared: list[Compared] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuild:
    """How a partition is rebuilt, up to record `end`, into snapshots in `work`: one every so many commands, to go on
    from if it is interrupted, and one at the end.

    `arrived` has, by partition, the last message from this one that is in the log there. None asks for nothing of what
    was sent, as it is with code that may send other things. `own` are the app's snapshots, to be compared with.
    """

    partition: int
    end: int
    codec: Codec
    log: Log
    work: SnapshotStore
    clock: Clock
    every: int
    arrived: Mapping[int, Place] | None
    own: SnapshotStore | None = None
    tell: Callable[[int, int], None] = lambda _done, _of: None

    def run(self) -> Rebuilt:
        """Raises `Corrupt` when the log cannot be handled, and `Misuse` when `work` is of another log."""
        image, compared = self._loaded(), []
        begun = image.offset
        sending = None if self.arrived is None else _Sending(self.log, self.partition, self.arrived)
        for manifest in self._own_before(self.end, image.offset):
            if not self._replay(image, manifest.offset, sending):
                break
            compared.append(self._compare(image, manifest))
        end = self.end
        if not self._replay(image, end, sending):
            assert sending is not None
            assert sending.unsent is not None
            end = sending.unsent
            image = self._loaded()
            self._replay(image, end, None)
        return self._publish_end(image, begun, compared)

    def _loaded(self) -> Image:
        image = Image(self.partition, self.codec)
        loaded = self.work.newest(self.partition)
        if loaded is not None:
            if loaded.manifest.offset > self.end:
                raise Misuse(
                    f"The unfinished rebuild is at record {loaded.manifest.offset} of partition {self.partition}, but "
                    f"the log ends at {self.end}: it is of another log. Begin anew with --from-scratch."
                )
            image.load_encoded(loaded.columns, loaded.memory)
        return image

    def _replay(self, image: Image, end: int, sending: _Sending | None) -> bool:
        """Handles the records before `end`; False if one of them sent what is not in the log."""
        saved = image.handled

        def breathe() -> None:
            nonlocal saved
            if sending is not None:
                sending.check_events()
            self.tell(image.offset, self.end)
            if image.handled - saved >= self.every and image.offset < self.end:
                self._publish(image)
                saved = image.handled

        effects = dropped if sending is None else partial(sending.see, image)
        try:
            replay_until(image, self.log, end, effects=effects, progress=breathe)
        except _UnsentError:
            return False
        return True

    def _own_before(self, end: int, start: int) -> list[Manifest]:
        found = [] if self.own is None else self.own.manifests(self.partition)
        return sorted((m for m in found if start <= m.offset <= end), key=lambda manifest: manifest.offset)

    def _compare(self, image: Image, manifest: Manifest) -> Compared:
        assert self.own is not None
        digest = manifest.digest
        if not digest:
            try:
                loaded = self.own.read(manifest)
            except Corrupt as problem:
                return Compared(manifest.offset, f"it cannot be read: {problem}")
            digest = digest_of(loaded.contents.entities, loaded.memory)
        if image.digest() == digest:
            return Compared(manifest.offset)
        raise Corrupt(
            f"Partition {self.partition} comes to another state at record {manifest.offset} than the app's own "
            f"snapshot of that record, which is of version {manifest.app_version}: a handler is not deterministic, or "
            "the code has changed and its version has not. Use the code that made the snapshot; or, if this code is to "
            "decide what the log means, add --anew. Nothing was changed."
        )

    def _publish(self, image: Image) -> Manifest:
        freeze = image.begin_freeze()
        while freeze.advance(_SLICE):
            pass
        image.end_freeze()
        contents = Contents(freeze.columns, freeze.memory, image.count())
        for columns in freeze.columns:
            check_decodable(self.codec, columns)
        return self.work.publish(self.partition, contents, created=self.clock())

    def _publish_end(self, image: Image, begun: int, compared: Sequence[Compared]) -> Rebuilt:
        known = [m for m in self.work.manifests(self.partition) if m.offset == image.offset]
        manifest = known[0] if known and begun == image.offset else self._publish(image)
        self.tell(self.end, self.end)
        return Rebuilt(
            partition=self.partition,
            offset=image.offset,
            left=self.end - image.offset,
            commands=image.handled,
            entities=manifest.entities,
            digest=manifest.digest,
            begun=begun,
            compared=list(compared),
        )


class _UnsentError(Exception):
    """A record sent what is not in the log."""


class _Sending:
    """Looks whether what a partition's records send is in the log. `unsent` is the first record of which it is not."""

    def __init__(self, log: Log, partition: int, arrived: Mapping[int, Place]) -> None:
        self._log = log
        self._partition = partition
        self._arrived = [arrived.get(each, _NOTHING) for each in range(log.partitions)]
        self._everywhere = min(self._arrived)
        self._events: list[OutEvent] = []
        self.unsent: int | None = None

    def see(self, image: Image, handled: Handled) -> None:
        self._events += handled.events
        messages = handled.messages
        if messages and messages[-1].origin > self._everywhere:
            for message in messages:
                if message.everywhere is not None:
                    others = [at for each, at in enumerate(self._arrived) if each != self._partition]
                    there = min(others, default=message.origin)
                else:
                    there = self._arrived[partition_of(message.key, len(self._arrived))]
                if message.origin > there:
                    self.check_events()  # those of an earlier record may not be out either
                    self._stop(image.offset - 1)

    def check_events(self) -> None:
        """Of all records since the last call. Events leave in their order: if the last is out, all are."""
        events, self._events = self._events, []
        if events and not self._is_out(events[-1]):
            self._stop(next(event.offset for event in events if not self._is_out(event)))

    def _is_out(self, event: OutEvent) -> bool:
        before = (event.offset, event.index, event.number - 1)
        found = self._log.events(self._partition, after=before, limit=1)
        return bool(found) and found[0][1:4] == event[1:4]

    def _stop(self, offset: int) -> None:
        self.unsent = offset
        raise _UnsentError
