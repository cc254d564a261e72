"""What partitions say of a place becomes one stream, whatever is lost on the way and wherever its reader comes back."""

from __future__ import annotations

import asyncio
import itertools
import json
from random import Random

from engram import Token
from engram.serving.row_topic import Place, RowsTopic
from engram.serving.topic import Change
from engram.shard.requests import Changed
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.read_models.club import Marked

PARTITIONS = 3
PLACE = Place("club", PARTITIONS, Marked, "place", 100)


class World:
    """Partitions in which something happens, a gateway, and a reader that is cut off; messages get lost."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._at = [0] * PARTITIONS
        self._changes: list[list[int]] = [[0] for _ in range(PARTITIONS)]  # offsets; the value is the offset
        self._seen: list[Change] = []
        self._begin()

    def _begin(self) -> None:
        """A gateway that knows nothing."""
        self._shared = RowsTopic(PLACE)
        self._missed: RowsTopic | None = None
        self._number: int | None = None
        self._ask(self._shared, lossless=True)
        self._resume()

    def cut(self, *, other_gateway: bool) -> None:
        """The reader comes back, here or elsewhere."""
        if other_gateway:
            self._begin()
        else:
            self._resume()

    def happen(self, partition: int, *, changes: bool) -> None:
        """A record, which changes the rows there or does not."""
        self._at[partition] += 1
        if changes:
            since = self._changes[partition][-1]
            self._changes[partition].append(self._at[partition])
            for topic in self._topics():
                if topic.heard(partition) is not None and not topic.lacks_base(partition):
                    self._tell(topic, _said(partition, self._at[partition], self._at[partition], since))

    def renew(self) -> None:
        for topic in self._topics():
            self._ask(topic)

    def read(self, most: int) -> None:
        """The reader takes what is there for it."""
        for _ in range(most):
            if self._missed is not None:
                if self._missed.has(self._read_missed):
                    self._seen.append(self._missed.change(self._read_missed))
                    self._read_missed += 1
                elif (joined := self._shared.join(self._missed)) is not None:
                    self._number, self._missed = joined, None
            elif self._number is not None and self._shared.has(self._number):
                self._seen.append(self._shared.change(self._number))
                self._number += 1

    def end(self) -> list[Change]:
        """Nothing more happens, and nothing is lost any more."""
        for _ in range(4):
            for topic in self._topics():
                self._ask(topic, lossless=True)
            self.read(1000)
        return self._seen

    def check(self) -> None:
        before: list[int] | None = None
        for change in self._seen:
            offsets = [Token.parse(change.id).offsets[partition] for partition in range(PARTITIONS)]
            wanted = [self._value(partition, offset) for partition, offset in enumerate(offsets)]
            assert json.loads(change.data)["rows"] == wanted
            assert b"gap" not in change.data
            if before is not None:
                between = [
                    sum(then < offset <= now for offset in self._changes[partition])
                    for partition, (then, now) in enumerate(zip(before, offsets, strict=True))
                ]
                assert sum(between) == 1, "one change at a time, none twice and none left out"
                assert all(now >= then for then, now in zip(before, offsets, strict=True))
            before = offsets
        last = json.loads(self._seen[-1].data)["rows"]
        assert last == [self._value(partition, self._at[partition]) for partition in range(PARTITIONS)]

    def _resume(self) -> None:
        self._missed = None
        if not self._seen:
            self._number = self._shared.number - 1
            return
        last = self._seen[-1].id
        self._number = self._shared.resume(last)
        if self._number is None:
            self._missed, self._read_missed = self._shared.missed(last), 0
            self._ask(self._missed)

    def _topics(self) -> list[RowsTopic]:
        return [self._shared] if self._missed is None else [self._shared, self._missed]

    def _ask(self, topic: RowsTopic, *, lossless: bool = False) -> None:
        for partition in range(PARTITIONS):
            for changed in self._answers(topic, partition):
                self._tell(topic, changed, lossless=lossless)

    def _answers(self, topic: RowsTopic, partition: int) -> list[Changed]:
        """As a shard does: what it was, the changes, and what it is."""
        after, at, changes = topic.heard(partition), self._at[partition], self._changes[partition]
        now = _said(partition, at, changes[-1], changes[-1])
        if after is None:
            return [now]
        then = max(offset for offset in changes if offset <= after)
        base = [_said(partition, after, then, then)] if topic.lacks_base(partition) else []
        pairs = itertools.pairwise(changes)
        return [*base, *(_said(partition, o, o, since) for since, o in pairs if o > after), now]

    def _tell(self, topic: RowsTopic, changed: Changed, *, lossless: bool = False) -> None:
        if not lossless and self._random.random() < 0.3:
            return
        for _ in range(self._random.choice((1, 1, 2))):
            if topic.hear(changed) and self._random.random() < 0.7:
                self._ask_one(topic, changed.partition)

    def _ask_one(self, topic: RowsTopic, partition: int) -> None:
        for changed in self._answers(topic, partition):
            topic.hear(changed)

    def _value(self, partition: int, at: int) -> list[int]:
        return [partition, max(offset for offset in self._changes[partition] if offset <= at)]


def _said(partition: int, offset: int, value: int, since: int) -> Changed:
    rows = [[0, f"owner{partition}", json.dumps([partition, value])]]
    return Changed(1, partition, offset, 0, "answer", json.dumps(rows).encode(), since)


steps = st.one_of(
    st.tuples(st.just("happen"), st.integers(0, PARTITIONS - 1), st.booleans()),
    st.tuples(st.just("read"), st.integers(1, 5), st.none()),
    st.tuples(st.just("cut"), st.booleans(), st.none()),
    st.tuples(st.just("renew"), st.none(), st.none()),
)


@settings(max_examples=150)
@given(st.lists(steps, max_size=60), st.randoms(use_true_random=False))
def test_a_reader_sees_every_change_of_every_partition_once(story: list[tuple[str, object, object]], random: Random):
    """Whatever is lost, comes twice or comes late, and however often it is cut off: each answer is that of its
    positions, and between two there is one change in one partition."""

    async def live() -> None:
        world = World(random)
        for what, one, other in story:
            if what == "happen":
                world.happen(int(str(one)), changes=bool(other))
            elif what == "read":
                world.read(int(str(one)))
            elif what == "cut":
                world.cut(other_gateway=bool(one))
            else:
                world.renew()
        world.end()
        world.check()

    asyncio.run(live())
