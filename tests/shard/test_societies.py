"""Generated apps under generated histories: whatever they send, schedule, broadcast and emit, and whatever crashes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, cast

import pytest
from engram.codec.record import Envelope
from engram.image.image import Image
from engram.model.entity import EVERYWHERE
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.shard.network import Network, Owner
from tests.shard.societies import (
    KEYS,
    PARTITIONS,
    CutLog,
    Design,
    Program,
    Replay,
    come_to_rest,
    designs,
    events_out,
    programs,
    received,
    shared_state,
    society_of,
)

pytestmark = pytest.mark.usefixtures("quiet")
SESSIONS = ["red", "green"]
A_WHILE = 10_000  # until all timers have fired, in milliseconds
shards = st.integers(0, PARTITIONS - 1)
shard_counts = st.integers(1, PARTITIONS)
snapshot_every = st.integers(1, 12)
# For whom a client's command is: an entity type and form, or something shared; and which of the keys.
batches = st.lists(
    st.tuples(st.integers(0, 11), st.integers(0, len(KEYS) - 1), programs(), st.sampled_from(SESSIONS)),
    min_size=2,
    max_size=5,
)
cuts = st.lists(st.integers(0, 2), min_size=PARTITIONS, max_size=PARTITIONS)


class Societies(RuleBasedStateMachine):
    """A generated app under clients, passing time, and shards that come and go."""

    @initialize(design=designs, count=shard_counts, every=snapshot_every, sent=batches)
    def begin(self, design: Design, count: int, every: int, sent: list[tuple[int, int, Program, str]]) -> None:
        self.society = society_of(design)
        self.network = Network(app=self.society.app, log=CutLog("society", PARTITIONS))
        self.log = cast("CutLog", self.network.log)
        self.sequences = {session: itertools.count() for session in SESSIONS}
        self.last: list[Envelope] = []
        self.every = every
        self.shards = self.start(count)
        self.send(sent)

    # Clients

    @rule(sent=batches)
    def send(self, sent: list[tuple[int, int, Program, str]]) -> None:
        self.last = [self.envelope(*one) for one in sent]
        self.network.send_all(self.last)

    @rule()
    def send_the_last_again(self) -> None:
        self.network.send_all(self.last)

    @rule(milliseconds=st.sampled_from([-1000, 1, 50, 500, 4000]))
    def move_the_clock(self, milliseconds: int) -> None:
        self.network.clock.now += milliseconds

    # Shards

    @rule(number=shards, turns=st.integers(1, 3))
    def step(self, number: int, turns: int) -> None:
        for _ in range(turns):
            self.shards[number % len(self.shards)].step()

    @rule(sent=batches, amounts=cuts, turns=st.integers(1, 3), crash=st.booleans())
    def cut_effects_off(
        self, sent: list[tuple[int, int, Program, str]], amounts: Sequence[int], turns: int, crash: bool
    ) -> None:
        """Some of what is appended is there, and then the shards die, or try again."""
        self.send(sent)
        self.log.cuts = amounts
        for _ in range(turns):
            for shard in self.shards:
                shard.step()
        self.log.cuts = None
        if crash:
            self.shards = [self.successor(shard) for shard in self.shards]

    @rule(number=shards)
    def crash(self, number: int) -> None:
        place = number % len(self.shards)
        self.shards[place] = self.successor(self.shards[place])

    @rule(number=shards, partition=shards)
    def snapshot(self, number: int, partition: int) -> None:
        shard = self.shards[number % len(self.shards)].shard
        shard.begin_snapshot(list(shard.owned)[partition % len(shard.owned)])

    @rule(count=shard_counts, every=snapshot_every, clean=st.booleans())
    def restart(self, count: int, every: int, clean: bool) -> None:
        """With another number of shards, after a clean stop or a crash of all."""
        for shard in self.shards:
            if clean:
                shard.stop()
            else:
                shard.kill()
        self.every = every
        self.shards = self.start(count)

    @rule()
    def rest(self) -> None:
        self.check_images(come_to_rest(self.network, self.shards))

    def teardown(self) -> None:
        if not hasattr(self, "network"):
            return
        try:
            self.network.clock.now += A_WHILE
            replays = self.check_images(come_to_rest(self.network, self.shards))
            self.check_effects(self.network, replays)
            self.check_other_shards(1 + len(self.shards) % PARTITIONS, replays)
        finally:
            self.network.close()

    # What must hold

    def check_images(self, live: dict[int, Image]) -> list[Replay]:
        """Live, replayed and from each snapshot, every image is the same; and what is shared is so everywhere."""
        replays = [Replay(self.network, partition) for partition in range(PARTITIONS)]
        for replay in replays:
            digest = live[replay.partition].digest()
            assert replay.image.digest() == digest, "live, and replayed from zero"
            for loaded in self.network.snapshots(replay.partition):
                assert self.network.replayed(replay.partition, loaded).digest() == digest, "a snapshot and its tail"
        shared = [shared_state(image) for image in live.values()]
        assert all(one == shared[0] for one in shared), "what is shared is the same everywhere"
        return replays

    def check_effects(self, network: Network, replays: list[Replay]) -> None:
        for replay in replays:
            assert replay.left_by_refused() == [], "a command that was refused or has failed leaves no trace"
            assert events_out(network, replay.partition) == replay.events, "each event once, none missing"
            assert received(network, replay.partition) == {
                other.partition: sent for other in replays if (sent := other.sent_to(replay.partition, network))
            }, "each message once, in the order of its sender, none missing"

    def check_other_shards(self, count: int, replays: list[Replay]) -> None:
        """Shards that find nothing but the records come to the same images, and let the same out once more."""
        again = Network(app=self.society.app, log=self.log.without_effects())
        again.clock.now = 0  # what they append must not be news
        try:
            images = come_to_rest(again, [again.start(range(n, PARTITIONS, count), number=n) for n in range(count)])
            for replay in replays:
                assert images[replay.partition].digest() == replay.image.digest(), "with another number of shards"
            self.check_effects(again, replays)
        finally:
            again.close()

    # Helpers

    def start(self, count: int) -> list[Owner]:
        return [
            self.network.start(range(number, PARTITIONS, count), number=number, snapshot_every=self.every)
            for number in range(count)
        ]

    def successor(self, dead: Owner) -> Owner:
        dead.kill()
        return self.network.start(list(dead.shard.owned), snapshot_every=self.every)

    def envelope(self, kind: int, key: int, program: Program, session: str) -> Envelope:
        broadcast = self.society.broadcast(kind, program) if kind >= 9 else None
        command: Any = broadcast or self.society.command(kind // 3, kind, program)
        sequence = next(self.sequences[session])
        whom = EVERYWHERE if broadcast else KEYS[key]
        return self.network.envelope(whom, command, session=session, sequence=sequence)


TestSocieties = Societies.TestCase
TestSocieties.settings = settings(max_examples=40, stateful_step_count=12, deadline=None)
