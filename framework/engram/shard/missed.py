"""What subscribers have missed: changes of what they watch, from before this owner watched it.

Handling is deterministic and the log has everything, so the answers of the past can be found out: in a second image,
from a snapshot before the first that is missing, and the records after it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Generator
from dataclasses import replace

import structlog

from engram.clock import Clock, Stopwatch
from engram.codec.codec import Codec
from engram.errors import Corrupt, Misuse, Unavailable
from engram.image.image import Image
from engram.log.base import Log
from engram.shard.owned import Owned
from engram.shard.policy import Policy
from engram.shard.replay import READ_RECORDS, check_version
from engram.shard.requests import Response, SubscribeRows, Subscription
from engram.shard.search import FtsIndex
from engram.shard.serve import evaluation
from engram.shard.watched import Send, Watched
from engram.snapshots.base import SnapshotStore
from engram.snapshots.manifest import Manifest

# A store that does not answer for so long: subscribers are told the latest, and that there was more.
_LOAD_MS = 20_000
# While a snapshot is read, or the log does not answer, it is looked at so often.
_WAIT_MS = 10
_FOREVER_MS = 1_000_000_000
# Entities gone through for read models between two looks at the watch.
_BUILD_AT_ONCE = 20

_logger = structlog.get_logger()

Want = tuple[bytes, Subscription]
Wanted = list[Want]


class Missed:
    """Tells those who are behind what they have missed, then hands them over to the partition's `Watched`.

    One pass at a time for each partition, for all who were behind when it began, in slices between commands. Nothing of
    the second image gets out but answers. What would take more than the policy's number of records, or cannot be found
    out, is not told: then the subscriber gets a `Changed` of the moment, without `since`.
    """

    def __init__(
        self,
        codec: Codec,
        store: SnapshotStore,
        log: Log,
        *,
        policy: Policy,
        send: Send,
        clock: Clock,
        background: bool,
        stopwatch: Stopwatch = time.perf_counter,
    ) -> None:
        self._codec = codec
        self._store = store
        self._log = log
        self._policy = policy
        self._send = send
        self._clock = clock
        self._background = background
        self._stopwatch = stopwatch
        self._passes: dict[int, Generator[bool]] = {}  # by partition; each says whether it can go on at once
        self.nap_ms = _FOREVER_MS  # how long the shard may sleep

    def go_on(self, serving: list[Owned]) -> None:
        """A slice of what is under way: commands and queries wait no longer than for one of a snapshot."""
        passes = self._passes
        for owned in serving:
            if owned.watched.behind and owned.partition not in passes:
                passes[owned.partition] = self._tell(owned)
        for partition in passes.keys() - {owned.partition for owned in serving}:
            del passes[partition]  # it has moved: the next owner is asked
        naps = [self._advance(partition) for partition in list(passes)]
        self.nap_ms = min(naps, default=_FOREVER_MS)

    def _advance(self, partition: int) -> int:
        deadline = self._stopwatch() + self._policy.snapshot_budget_ms / 1000
        for ready in self._passes[partition]:
            if not ready:
                return _WAIT_MS
            if self._stopwatch() >= deadline:
                return 0
        del self._passes[partition]
        return 0

    def _tell(self, owned: Owned) -> Generator[bool]:
        end = owned.image.offset
        wanted, owned.watched.behind = sorted(owned.watched.behind, key=_after), []
        places, rows = [_after(want) for want in wanted], any(isinstance(want[1], SubscribeRows) for want in wanted)
        image = yield from self._loaded(owned.partition, places, end, rows=rows)
        known = [] if image is None else [want for want in wanted if _after(want) >= image.offset - 1]
        problem = f"no snapshot before it can be had within {self._policy.missed_records:,} records"
        if image is not None:
            try:
                yield from self._replay(image, known, end)
            except (Corrupt, Misuse) as found:
                known, problem = [], str(found)
        if len(known) < len(wanted):
            count = len(wanted) - len(known)
            _logger.warning("missed_changes_not_told", partition=owned.partition, subscribers=count, problem=problem)
        told = set(known)
        for sender, request in wanted:
            after = end - 1 if (sender, request) in told else None
            owned.watched.catch_up(sender, request, after, owned.image.place, self._send)

    def _loaded(
        self, partition: int, places: list[int], end: int, *, rows: bool
    ) -> Generator[bool, None, Image | None]:
        """An image as of the first of `places` that can be had, or before it. The store may be slow: it is read on
        another thread."""
        found: list[Image | None] = []
        loading = threading.Thread(
            target=lambda: found.append(self._load(partition, places, end, rows=rows)),
            name="engram-missed",
            daemon=True,
        )
        if self._background:
            loading.start()
        else:
            loading.run()
        deadline = self._clock() + _LOAD_MS
        while loading.is_alive() and self._clock() < deadline:
            yield False
        image = found[0] if found else None
        if image is not None and image.read_models is not None:
            while image.read_models.advance(_BUILD_AT_ONCE, image.offset):  # those without rows in the snapshot
                yield True
        return image

    def _load(self, partition: int, places: list[int], end: int, *, rows: bool) -> Image | None:
        try:
            manifests: list[Manifest | None] = [*self._store.manifests(partition), None]
        except Unavailable:
            return None
        for place in places:
            for manifest in manifests:
                offset = 0 if manifest is None else manifest.offset
                if offset <= place + 1 and end - offset <= self._policy.missed_records:
                    image = Image(partition, self._codec, new_text_index=FtsIndex if rows else None)
                    try:
                        if manifest is not None:
                            loaded = self._store.read(manifest)
                            image.load_encoded(loaded.columns, loaded.memory)
                    except (Corrupt, Unavailable) as problem:
                        _logger.warning("snapshot_not_used", partition=partition, offset=offset, problem=str(problem))
                    else:
                        return image
        return None

    def _replay(self, image: Image, wanted: Wanted, end: int) -> Generator[bool]:
        """Tells the changes up to the record before `end`, to each from its own place on. Raises `Corrupt` when the log
        does not go back so far, and `Misuse` when another version of the app has handled its records."""
        watched, evaluate, waiting = Watched(image.read_models), evaluation(image), deque(wanted)
        while image.offset < end:
            try:
                records = self._log.read(image.partition, image.offset, limit=min(READ_RECORDS, end - image.offset))
            except Unavailable:
                yield False
                continue
            if not records:
                raise Corrupt(f"The log of partition {image.partition} has no record {image.offset} any more.")
            for record in records:
                while waiting and _after(waiting[0]) < image.offset:
                    sender, request = waiting.popleft()
                    here, base = replace(request, after=None), isinstance(request, SubscribeRows) and request.base
                    send = self._send if base else _not_at_all
                    watched.subscribe(sender, here, image.place, evaluate, send, now=0)
                check_version(image, record)
                handled = image.handle(record)
                if watched:
                    watched.after(handled, image.place, evaluate, self._send)
                yield True
        for sender, request in wanted:
            watched.catch_up(sender, request, end - 1, image.place, self._send)


def _after(want: Want) -> int:
    after = want[1].after
    assert after is not None
    return after


def _not_at_all(_sender: bytes, _response: Response) -> None:
    """Nobody is told what was before: that they have heard."""
