"""The world of a simulation: a log, a disk, owners that come and go, a gateway and its clients."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from engram.errors import EngramError, Misuse
from engram.log.partitioner import partition_of
from engram.shard.requests import Answer, Ask, Look, Refusal, Replies, Request, Response
from engram.shard.versions import check_code_epoch
from engram.testing.simulator.clients import Client, Gateway
from engram.testing.simulator.clock import VirtualClock, VirtualTime
from engram.testing.simulator.disk import Loss, SimulatedDisk
from engram.testing.simulator.log import SimulatedLog
from engram.testing.simulator.owners import Owner, log_line, open_store
from engram.testing.simulator.process import Crashed, Process
from engram.testing.simulator.steps import Setup
from engram.testing.simulator.subject import Question, Subject
from engram.testing.simulator.wrong import Wrong

ASK_TIMEOUT_MS = 1000
ALL_ROWS = 10_000
# When all power is lost in the middle of an append: so many of its entries are there.
_LANDS: dict[Loss, int] = {"clean": 1000, "torn": 1, "lost": 0, "uneven": 1}

Arm = Callable[[Process], None]


class Said(NamedTuple):
    """What an owner has said to somebody."""

    owner: str
    version: int
    response: Response


class Slot:
    """A place for a shard: its owner, if one is up, and what will befall the next one."""

    def __init__(self, number: int, clock: VirtualClock) -> None:
        self.number = number
        self.clock = clock
        self.owner: Owner | None = None
        self.armed: list[Arm] = []


class World:
    """Everything there is. `said` has all that owners ever said, `asked` all questions by id, `counts` what has
    happened."""

    def __init__(self, subject: Subject, setup: Setup) -> None:
        self.subject = subject
        self.setup = setup
        self.time = VirtualTime()
        self.log = SimulatedLog(subject.apps[0].name, setup.partitions, independent=setup.independent)
        self.disk = SimulatedDisk()
        self.counts: Counter[str] = Counter()
        self.said: list[Said] = []
        self.asked: dict[int, Ask | Look] = {}
        self.clients = [Client(f"client-{number}") for number in range(setup.clients)]
        self.lost_responses = 0
        self.version = 0  # an index into the subject's apps
        self.old: list[Owner] = []  # owners that have a successor, and have not heard of it
        self.flipped = False
        self.operations = 0
        self.operations_in_steps = 0  # up to the last step of the program
        self._crash_at = setup.crash_at
        self._names = itertools.count(1)
        self._ids = itertools.count(1)
        self._savepoints = itertools.count(1)
        self._clocks = [VirtualClock(self.time) for _ in range(8)]
        self._gateway_armed: list[Arm] = []
        self.gateway_clock = VirtualClock(self.time)
        self._gateway: Gateway | None = None
        self.slots: list[Slot] = []
        self.make_slots(setup.shards)

    # Processes

    def make_slots(self, count: int) -> None:
        self.slots = [Slot(number, self._clocks[number]) for number in range(min(count, self.setup.partitions))]

    def process(self, name: str, clock: VirtualClock) -> Process:
        return Process(f"{name}-{next(self._names)}", clock, self._on_operation, self.counts)

    def owner_of(self, partition: int) -> Owner | None:
        return self.slots[partition % len(self.slots)].owner

    def start(self, slot: Slot) -> None:
        """As Spark starts a task; if it fails, the next turn starts another."""
        app = self.subject.apps[self.version]
        process = self.process(f"shard-{slot.number}", slot.clock)
        armed, slot.armed = slot.armed, []
        for arm in armed:
            arm(process)
        self.counts["starts"] += 1
        try:
            owner = Owner(
                process,
                self.subject.codecs[app.version],
                range(slot.number, self.setup.partitions, len(self.slots)),
                log=self.log,
                disk=self.disk,
                setup=self.setup,
                new_mark=self.new_mark,
                heard=self._heard,
            )
        except (Crashed, EngramError):
            self.counts["failed starts"] += 1
            return
        if owner.recover():
            slot.owner = owner
        else:
            self.counts["failed starts"] += 1

    def turn(self, slot: Slot) -> None:
        """Starts what is down."""
        if slot.owner is None:
            self.start(slot)
            return
        slot.owner.turn()
        self._bury(slot)

    def work(self, slot: Slot, worker: int) -> None:
        if slot.owner is not None:
            slot.owner.work(worker)
            self._bury(slot)

    def replace(self, slot: Slot) -> None:
        """A second owner beside the first."""
        if slot.owner is not None:
            self.old.append(slot.owner)
            slot.owner = None
            self.counts["two owners at once"] += 1
        self.start(slot)

    def _bury(self, slot: Slot) -> None:
        if slot.owner is not None and slot.owner.over:
            slot.owner = None

    def turn_old(self, number: int) -> None:
        if self.old:
            owner = self.old[number % len(self.old)]
            owner.turn()
            owner.work_all()
            self.counts["turns of an owner that was replaced"] += 1
            if owner.over:
                self.old.remove(owner)

    def arm(self, shard: int, arm: Arm) -> None:
        """Something befalls an owner, or the gateway; or the next one, if there is none now."""
        slot = self.slots[shard % len(self.slots)]
        now = self._gateway if shard < 0 else slot.owner
        if now is None:
            (self._gateway_armed if shard < 0 else slot.armed).append(arm)
        else:
            arm(now.process)

    def lose_power(self, loss: Loss) -> None:
        """All shards die, the store's disk loses what was not synced; log and gateway are elsewhere."""
        published: set[str] = set()
        for owner in self._owners():
            published |= owner.published
            owner.kill()
        self.old.clear()
        for slot in self.slots:
            slot.owner = None
        published &= {*self.disk.files()}
        self.disk.lose_power(loss)
        if not published <= {*self.disk.files()}:
            raise Wrong(f"a snapshot that was published is gone after a power loss: {published} of {self.disk.files()}")
        self.counts[f"power losses, {loss}"] += 1

    def stop_all(self, savepoint: str = "") -> bool:
        """Cleanly; whether all have ended so."""
        ended = [slot.owner is not None and slot.owner.stop(savepoint) for slot in self.slots]
        for slot in self.slots:
            slot.owner = None
        return all(ended)

    def upgrade(self) -> bool:
        """As an operator does it: a savepoint of everything, and the next version if that may start. What the old
        version has on its way to the log may come later."""
        if self.version + 1 == len(self.subject.apps) or any(slot.owner is None for slot in self.slots):
            return False
        if not self.stop_all(f"savepoint-{next(self._savepoints)}"):
            return False
        process = self.process("operator", self.gateway_clock)
        app = self.subject.apps[self.version + 1]
        try:
            store = open_store(self.disk, process, app.name, self.setup, self.new_mark)
            check_code_epoch(app, log_line(self.log, process, self.setup), store)
        except (Misuse, Crashed):
            self.counts["upgrades refused"] += 1
            return False
        self.version += 1
        self.counts["upgrades"] += 1
        return True

    # Clients

    @property
    def gateway(self) -> Gateway:
        """The one that is up; after a crash, another."""
        if self._gateway is None:
            process = self.process("gateway", self.gateway_clock)
            self._gateway = Gateway(process, log_line(self.log, process, self.setup))
            for arm in self._gateway_armed:
                arm(process)
            self._gateway_armed.clear()
        return self._gateway

    def commit(self) -> bool:
        """Whether the gateway had something to append."""
        if self._gateway is None:
            return False
        try:
            worked = [worker.work() for worker in self._gateway.workers]
            return any(worked)
        except Crashed:
            self._gateway = None
            for client in self.clients:
                client.gateway_died()
            return True

    def act(self, client: Client, *, again: bool = False) -> None:
        client.act(self.gateway, self.subject.envelope, self._ask_owner, again=again)

    def ask(self, client: Client, question: Question, *, own: bool) -> None:
        """Of the owner of the key's partition; a look goes to one partition, whatever its place."""
        number = next(self._ids)
        partition = partition_of(question.key, self.setup.partitions)
        at_least = None
        call = client.current
        if own and call is not None and call.state == "done" and call.places and call.places[-1].partition == partition:
            at_least = call.places[-1].offset, call.places[-1].index
        request: Ask | Look
        if question.query is None:
            look = question.model, question.key, None, ALL_ROWS
            request = Look(number, partition, *look, at_least, ASK_TIMEOUT_MS)
        else:
            query = question.query
            codec = self.subject.codecs[self.subject.apps[0].version]
            name, version = query.__engram__.name or "", codec.version_of(type(query))
            body = codec.encode_body(query)
            request = Ask(number, partition, question.key, name, version, body, at_least, ASK_TIMEOUT_MS)
        self.asked[number] = request
        self._ask_owner(request)

    def _ask_owner(self, request: Request) -> None:
        partition = getattr(request, "partition", 0)
        owner = self.owner_of(partition)
        if owner is not None:
            owner.request(self.gateway.name.encode(), request)

    def _heard(self, owner: Owner, receiver: bytes, response: Response) -> None:
        self.said.append(Said(owner.name, owner.version, response))
        if isinstance(response, Answer | Refusal):
            self.counts["answers"] += isinstance(response, Answer)
            return
        if self.lost_responses:
            self.lost_responses -= 1
            return
        if isinstance(response, Replies) and self._gateway is not None and receiver == self._gateway.name.encode():
            self._gateway.replied(response)

    # The rest

    def heal(self) -> None:
        """From here on nothing goes wrong any more; what was late arrives."""
        self._crash_at = 0
        self.lost_responses = 0
        self.disk.full = False
        self._gateway_armed.clear()
        for slot in self.slots:
            slot.armed.clear()
        for process in self._processes():
            process.heal()
        self.log.land_all()

    def _processes(self) -> Iterator[Process]:
        if self._gateway is not None:
            yield self._gateway.process
        for owner in self._owners():
            yield owner.process

    def _owners(self) -> list[Owner]:
        return [*self.old, *(slot.owner for slot in self.slots if slot.owner is not None)]

    def new_mark(self) -> str:
        """In place of random digits."""
        return f"{next(self._names):08x}"

    def _on_operation(self, process: Process) -> None:
        self.operations += 1
        if self._crash_at and self.operations >= self._crash_at:
            first = self.operations == self._crash_at
            process.lands = _LANDS[self.setup.loss] if first else 0
            process.die()
