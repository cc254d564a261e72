"""Generated histories with a repartition in their middle come to the same as without it, entity by entity."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import pytest
from engram.codec.record import Envelope
from engram.image.image import Image
from engram.log.memory import MemoryLog
from engram.reshape.partition import Reshaping
from engram.reshape.plan import Place, Plan
from engram.reshape.share import Share
from engram.snapshots.memory import MemorySnapshots
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.reshape.town import KEYS, Hush, Person, Rules, Steps, Tell, app, steps
from tests.shard.network import Network, Owner
from tests.shard.societies import come_to_rest

pytestmark = pytest.mark.usefixtures("quiet")
A_WHILE = 20_000
SESSIONS = ["red", "green"]


class Draft(MemoryLog):
    """A log in memory as one that is being made."""

    finished = True

    def begin(self, partition: int, progress: Callable[[int, int], None]) -> None:
        assert self.end(partition) >= self.base

    def finish(self) -> None: ...


def plan_of(network: Network, to: int) -> Plan:
    """What is to be done with a network whose shards have stopped."""
    partitions = range(network.log.partitions)
    manifests = tuple(next(iter(network.store.manifests(p)), None) for p in partitions)
    return Plan(
        reference="tests.reshape.town:app",
        app=app.name,
        source=Place(log="memory:old", snapshots="memory:old"),
        target=Place(log="memory:new", snapshots="memory:new"),
        partitions=len(partitions),
        to=to,
        manifests=manifests,
        ends=tuple(network.log.end(p) for p in partitions),
        version=1,
    )


def repartitioned(network: Network, to: int) -> Network:
    """The same town, on a new log: surveyed, made twice as after a crash, and verified."""
    plan = plan_of(network, to)
    log, store = Draft(app.name, to, base=plan.base), MemorySnapshots(app.name)
    reshaping = Reshaping(plan, app, (network.log, network.store), (log, store))

    def tell(_done: int, _of: int) -> None: ...

    surveys = [reshaping.survey(old, tell) for old in range(plan.partitions)]
    shared = reduce(Share.plus, (found.shared for found in surveys))
    for new in range(to):
        records = reshaping.make(new, tell)
        assert reshaping.make(new, tell) == records, "made again, it is the same"
        expected = reduce(Share.plus, (found.shares[new] for found in surveys if new in found.shares), shared)
        assert reshaping.verify(new, expected, records) == expected
    made = Network(app=app, log=log, store=store)
    made.clock.now = network.clock.now
    return made


class History:
    """One town under the same clients, wherever it lives."""

    def __init__(self, partitions: int) -> None:
        self.network = Network(partitions, app=app)
        self.sent: list[Envelope] = []
        self._sequences = {session: itertools.count() for session in SESSIONS}
        self._numbers = itertools.count()
        self.events: Counter[str] = Counter()
        self.owners: list[Owner] = []

    def start(self, count: int) -> None:
        partitions = self.network.log.partitions
        self.owners = [self.network.start(range(n, partitions, count), number=n) for n in range(count)]

    def send(self, batch: Sequence[tuple[int, Steps, str, bool]]) -> None:
        envelopes = []
        for key, program, session, keyed in batch:
            number = next(self._numbers)
            command: Any = Hush(what=f"c{number - 1}") if program is None else Tell(what=f"c{number}", steps=program)
            sequence = next(self._sequences[session])
            once = f"once{number}" if keyed else None
            more = {"session": session, "sequence": sequence, "idempotency_key": once}
            envelopes.append(self.network.envelope(KEYS[key], command, **more))
        self.sent += envelopes
        self.network.send_all(envelopes)

    def send_again(self) -> None:
        """All that was ever sent, by clients that heard no reply; those with a key from a session of their own."""
        for number, envelope in enumerate(self.sent):
            again = envelope._replace(session=f"again{number}", sequence=0) if envelope.idempotency_key else envelope
            self.network.send_all([again])

    def step(self, number: int, turns: int) -> None:
        for _ in range(turns):
            self.owners[number % len(self.owners)].step()

    def stop(self) -> None:
        for owner in self.owners:
            owner.stop(savepoint="before")

    def move(self, to: int) -> None:
        self.note_events()
        self.network.close()
        self.network = repartitioned(self.network, to)

    def note_events(self) -> None:
        log = self.network.log
        for partition in range(log.partitions):
            for event in log.events(partition, after=(-1, 0, 0), limit=1_000_000):
                self.events[event.body.decode()] += 1

    def end(self) -> dict[str, Any]:
        """What has become of it when all timers have fired."""
        come_to_rest(self.network, self.owners)
        self.network.clock.now += A_WHILE
        images = come_to_rest(self.network, self.owners)
        self.note_events()
        self.network.close()
        return {
            "people": _people(images),
            "rules": sorted(_rules(images[0])),
            "same rules": len({tuple(_rules(image)) for image in images.values()}),
            "failed": sorted(
                (r.command, r.key, r.body, r.failures) for i in images.values() for r in i.quarantine.listed
            ),
            "failures": sum(image.quarantine.count for image in images.values()),
            "events": self.events,
            "waiting": sum(len(image.timers) for image in images.values()),
        }


def _people(images: dict[int, Image]) -> dict[str, Any]:
    found = {}
    for image in images.values():
        for key in list(image._homes[Person].all_keys()):
            person = image.find(Person, key)
            assert person is not None
            assert key not in found, "an entity lives in one partition"
            found[key] = dict(person.heard), sorted(person.alarms)
    return found


def _rules(image: Image) -> list[str]:
    rules = image.find(Rules, "*")
    return [] if rules is None else list(rules.made)


batches = st.lists(
    st.tuples(
        st.integers(0, len(KEYS) - 1),
        st.one_of(steps(), steps(), steps(), st.none()),
        st.sampled_from(SESSIONS),
        st.booleans(),
    ),
    min_size=1,
    max_size=5,
)
moves = st.one_of(
    st.tuples(st.just("send"), batches),
    st.tuples(st.just("send"), batches),
    st.tuples(st.just("step"), st.integers(0, 2), st.integers(1, 3)),
    st.tuples(st.just("clock"), st.sampled_from([1, 50, 5000])),
)
histories = st.lists(moves, min_size=2, max_size=8)


def play(history: History, part: Sequence[Any]) -> None:
    for move in part:
        match move:
            case ("send", batch):
                history.send(batch)
            case ("step", number, turns):
                history.step(number, turns)
            case ("clock", milliseconds):
                history.network.clock.now += milliseconds


@settings(max_examples=60)
@given(
    before=histories,
    unhandled=st.lists(batches, max_size=2),
    after=histories,
    partitions=st.integers(1, 6),
    to=st.integers(1, 7),
    shards=st.integers(1, 3),
)
def test_a_repartition_changes_nothing(
    *, before: Any, unhandled: Any, after: Any, partitions: int, to: int, shards: int
):
    """Entities, timers, what was sent and not handled, rules, failures, events, and what clients send once more."""
    ends = []
    for moved in (False, True):
        history = History(partitions)
        history.start(min(shards, partitions))
        play(history, before)
        history.stop()
        for batch in unhandled:
            history.send(batch)
        if moved:
            history.move(to if to != partitions else to + 1)
        history.start(min(shards, history.network.log.partitions))
        play(history, after)
        come_to_rest(history.network, history.owners)
        history.send_again()
        ends.append(history.end())
    assert ends[1] == ends[0]
    assert ends[0]["same rules"] == 1


@settings(max_examples=15)
@given(before=histories, between=histories, counts=st.lists(st.integers(1, 6), min_size=2, max_size=2))
def test_there_and_back_changes_nothing(before: Any, between: Any, counts: list[int]):
    """A second repartition, also to the first number: positions go on rising, and timers keep their handles."""
    first, second = counts[0], counts[1] if counts[1] != counts[0] else counts[1] + 1
    ends = []
    for moved in (False, True):
        history = History(first)
        history.start(1)
        play(history, before)
        history.stop()
        if moved:
            history.move(second)
        history.start(1)
        play(history, between)
        history.stop()
        if moved:
            base = history.network.log.base
            history.move(first)
            assert history.network.log.base > base
        history.start(1)
        ends.append(history.end())
    assert ends[1] == ends[0]


def test_a_partition_that_is_behind_loses_nothing_to_the_others():
    """What it was told before an alarm was due counts before the alarm, though the other partition's time is past that;
    what it was told twice counts once; and nobody's time goes back."""
    history = History(2)
    behind, ahead = (next(n for n, key in enumerate(KEYS) if history.network.home(key) == p) for p in (0, 1))
    history.start(2)
    history.send([(behind, [["wait", 40, []]], "red", False)])
    history.step(0, 2)
    history.owners[0].stop(savepoint="before")
    began = history.network.clock.now
    history.network.clock.now = began + 10
    history.send([(behind, None, "red", False), (behind, [], "red", False)])
    history.network.send_all(history.sent[-2:])
    history.network.clock.now = began + 100
    history.send([(ahead, [], "green", False)])
    history.step(1, 2)
    history.owners[1].stop(savepoint="before")
    history.move(3)
    history.network.clock.now = began
    history.start(1)

    images = come_to_rest(history.network, history.owners)
    assert _people(images) == {KEYS[behind]: ({"c0": 1, "c2": 1}, []), KEYS[ahead]: ({"c3": 1}, [])}
    assert {image.time for image in images.values()} == {began + 100}
    history.network.close()
