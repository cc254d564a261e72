"""Ways for an app to come to its state again. All must come to the same."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from structlog.testing import capture_logs

from engram.clock import Clock
from engram.codec.codec import Codec
from engram.errors import Corrupt, Misuse
from engram.image.contents import EntityRow, Memory
from engram.image.image import Handled, Image
from engram.image.row_index import Index, TalliedRows
from engram.log.base import Log
from engram.log.memory import MemoryLog
from engram.shard.policy import Policy
from engram.shard.replay import replay_until
from engram.shard.search import FtsIndex
from engram.shard.shard import Shard
from engram.snapshots.base import SnapshotStore
from engram.snapshots.memory import MemorySnapshots
from engram.testing.silence import Silence

Places = dict[str, dict[str, None]]
_NEVER = Policy(snapshot_every=10**12, snapshot_seconds=math.inf)
# Shards that still find something to do after so many turns do not come to rest.
_TURNS = 10_000
_ALL = 1_000_000_000


class Kept(NamedTuple):
    """A snapshot of a partition."""

    rows: list[EntityRow]
    memory: Memory


def snapshot_of(image: Image) -> Kept:
    frozen = image.begin_freeze()
    while frozen.advance(1000):
        pass
    image.end_freeze()
    return Kept(frozen.rows, frozen.memory)


def check_replays(live: Image, log: Log, codec: Codec, kept: Sequence[Kept], places: Places) -> None:
    """Recovers a partition from the log alone, and from each snapshot and the records after it."""
    ways: list[tuple[str, Kept | None]] = [
        ("replayed from zero", None),
        ("restored from a snapshot", snapshot_of(live)),
    ]
    ways += [
        (f"from a snapshot at record {snapshot.memory.offset} and the records after it", snapshot) for snapshot in kept
    ]
    for how, snapshot in ways:
        image = Image(live.partition, codec, new_text_index=FtsIndex)
        if snapshot is not None:
            image.load(*snapshot)
        replay_until(image, log, live.offset, effects=_dropped, progress=_unwatched)
        _check_same(f"Partition {live.partition}, {how},", image, live)
        _check_read_models(f"of partition {live.partition}, {how},", image, live, places)


def check_shards(codec: Codec, log: MemoryLog, live: Sequence[Image], clock: Clock, counts: Sequence[int]) -> None:
    """Runs real shards, as many as each count says, over copies of the log; each partition must come to what it is."""
    for count in counts:
        if not 1 <= count <= log.partitions:
            raise Misuse(f"{count} shards cannot share {log.partitions} partitions: give numbers from 1 to that.")
        with _running(codec, log.copy(), MemorySnapshots(log.app), clock, count) as images:
            for image, wanted in zip(images, live, strict=True):
                _check_same(f"Partition {wanted.partition}, with {count} shards,", image, wanted)


def check_upgrade(codec: Codec, log: MemoryLog, live: Sequence[Image], clock: Clock, new_codec: Codec | None) -> None:
    """Ends the app cleanly and starts the next version of it from the snapshots, with another number of shards; twice.

    Without `new_codec` it is the same code with the next version number, and must come to the same state. With it, all
    entities must be there, and must not change with the second start.
    """
    app, following = codec.app, new_codec or successor(codec)
    new = following.app
    if new.version <= app.version or new.name != app.name:
        raise Misuse(f"{new!r} is no later version of {app!r}: give it the same name and a greater version.")
    store, copied = MemorySnapshots(app.name), log.copy()
    with _running(codec, copied, store, clock, 1):
        pass
    with _running(following, copied, store, clock, log.partitions) as images:
        states = [_readable_digest(image) for image in images]
        for image, before in zip(images, live, strict=True):
            told = f"Partition {before.partition}, upgraded from version {app.version} to {new.version},"
            if new_codec is None:
                _check_same(told, image, before)
            elif image.count() != before.count():
                raise AssertionError(f"{told} has {image.count()} entities instead of {before.count()}.")
    with _running(following, copied, store, clock, 1) as images:
        for image, state in zip(images, states, strict=True):
            if image.digest() != state:
                raise AssertionError(f"Partition {image.partition} of version {new.version} changed with a restart.")


def _readable_digest(image: Image) -> str:
    """Of an image that was just loaded: its entities are decoded here for the first time."""
    try:
        return image.digest()
    except Corrupt as problem:
        raise AssertionError(
            f"Partition {image.partition} cannot be read by version {image.app.version}: {problem}"
        ) from problem


def successor(codec: Codec) -> Codec:
    """The same code with the next version number."""
    following, app = copy.copy(codec), copy.copy(codec.app)
    app.version += 1
    following.app = app
    return following


@contextmanager
def _running(codec: Codec, log: MemoryLog, store: SnapshotStore, clock: Clock, count: int) -> Iterator[list[Image]]:
    """The images of all partitions, by shards that are at rest; ended cleanly afterwards."""
    with capture_logs():  # what goes wrong is told by what is compared
        lines = [Silence() for _ in range(count)]
        shards = [
            Shard(
                codec.app,
                number=number,
                partitions=range(number, log.partitions, count),
                log=log,
                store=store,
                transport=line,
                clock=clock,
                owner=f"{codec.app.version}-{count}-{number}",
                policy=_NEVER,
                codec=codec,
            )
            for number, line in enumerate(lines)
        ]
        try:
            for shard in shards:
                shard.recover()
            _come_to_rest(shards, log)
            owned = {partition: owned for shard in shards for partition, owned in shard.owned.items()}
            for partition in owned.values():
                if partition.state != "serving":
                    raise AssertionError(f"Partition {partition.partition} does not start. {partition.problem}")
            yield [owned[partition].image for partition in range(log.partitions)]
            for shard, line in zip(shards, lines, strict=True):
                line.stop()
                shard.step(wait=False)
        finally:
            for shard in shards:
                shard.close()


def _come_to_rest(shards: Sequence[Shard], log: Log) -> None:
    for _ in range(_TURNS):
        ends = [log.end(partition) for partition in range(log.partitions)]
        for shard in shards:
            shard.step(wait=False)
        behind = any(o.image.offset < log.end(p) for s in shards for p, o in s.owned.items() if o.state == "serving")
        if not behind and ends == [log.end(partition) for partition in range(log.partitions)]:
            return
    raise AssertionError(f"The shards still find something to do after {_TURNS} turns.")


def _check_same(told: str, image: Image, live: Image) -> None:
    if image.digest() != live.digest():
        raise AssertionError(
            f"{told} is not what it was: {_states(image)} instead of {_states(live)}. Handlers must depend on nothing "
            "but command, entity and ctx."
        )


def _check_read_models(told: str, image: Image, live: Image, places: Places) -> None:
    if image.read_models is None or live.read_models is None:
        return
    while image.read_models.advance(1000, image.offset):
        pass
    for name, known in places.items():
        index, wanted = image.read_models.index(name), live.read_models.index(name)
        for place in known:
            found, should = _rows_at(index, place), _rows_at(wanted, place)
            if found != should:
                raise AssertionError(
                    f"Read model {name} {told} has other rows at {place!r}: {found} instead of {should}."
                )


def _rows_at(index: Index, place: str) -> list[object]:
    return [index.find(place)] if isinstance(index, TalliedRows) else [*sorted(index.find(place, None, _ALL))]


def _states(image: Image) -> str:
    found = [repr(entity) for entities in image.entities.values() for entity in entities.values()]
    return ", ".join(sorted(found)) or "nothing"


def _dropped(_handled: Handled) -> None:
    """Effects of a replay: they are in the log already."""


def _unwatched() -> None:
    """Nobody waits for this replay."""
