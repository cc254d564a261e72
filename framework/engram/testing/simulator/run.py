"""A run: the steps of a program, then everything is well again, and must come to rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engram.shard.requests import TakeSnapshot
from engram.testing.simulator import steps as s
from engram.testing.simulator.process import AppendFault, Process
from engram.testing.simulator.subject import Subject
from engram.testing.simulator.world import ASK_TIMEOUT_MS, World
from engram.testing.simulator.wrong import Wrong

# What must be enough after the last fault: snapshots that failed are tried again after a minute at most, effects after
# two seconds, and a clock that has jumped back makes both wait for as long as it jumped.
REST_ROUNDS = 400
_ROUND_MS = 300


def run(subject: Subject, program: s.Program) -> World:
    """The world after it has come to rest. Raises `Wrong` when it does not."""
    world = World(subject, program.setup)
    do = _Steps(world)
    for step in program.steps:
        do(step)
        if program.setup.crash_at and world.operations >= program.setup.crash_at:
            world.lose_power(program.setup.loss)
            break
    world.operations_in_steps = world.operations
    world.heal()
    _come_to_rest(world)
    return world


def _come_to_rest(world: World) -> None:
    for _ in range(REST_ROUNDS):
        _round(world)
        world.time.now += _ROUND_MS
        if _at_rest(world):
            return
    raise Wrong(f"It does not come to rest in {REST_ROUNDS * _ROUND_MS / 1000:.0f} virtual seconds: {_told(world)}")


def _round(world: World) -> None:
    """Everybody has a turn."""
    for client in world.clients:
        if not client.idle:
            world.act(client)
    world.commit()
    for slot in world.slots:
        world.turn(slot)
        if slot.owner is not None:
            slot.owner.work_all()
    for number in range(len(world.old)):
        world.turn_old(number)


def _at_rest(world: World) -> bool:
    return (
        all(client.idle for client in world.clients)
        and not world.old
        and all(_partition_at_rest(world, partition) for partition in range(world.setup.partitions))
    )


def _partition_at_rest(world: World, partition: int) -> bool:
    owner = world.owner_of(partition)
    if owner is None or not owner.serving or owner.busy:
        return False
    image = owner.shard.owned[partition].image
    due = image.timers.next_due()
    return (
        image.offset == world.log.end(partition)
        and not owner.shard.pending
        and (due is None or due > max(owner.process.clock(), image.time))
    )


def _told(world: World) -> str:
    found = [f"clients have {[c.current and c.current.state for c in world.clients]}"]
    for slot in world.slots:
        states = None if slot.owner is None else [o.status().model_dump_json() for o in slot.owner.shard.owned.values()]
        found.append(f"shard {slot.number}: {states or 'down'}")
    return "; ".join(found)


class _Steps:
    """What each step does to a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._do: dict[type[Any], Callable[[Any], object]] = {
            s.Send: self._send,
            s.Act: lambda step: world.act(self._client(step.client), again=step.again),
            s.Commit: lambda _: world.commit(),
            s.Turn: lambda step: world.turn(self._slot(step.shard)),
            s.Work: lambda step: world.work(self._slot(step.shard), step.worker),
            s.Go: self._go,
            s.TurnOld: lambda step: world.turn_old(step.number),
            s.Pass: self._pass,
            s.Jump: self._jump,
            s.Crash: lambda step: self._arm(step.shard, lambda p: p.crash_after(step.after, step.lands)),
            s.PowerLoss: lambda step: world.lose_power(step.loss),
            s.TakeOver: lambda step: world.replace(self._slot(step.shard)),
            s.CutOff: lambda step: self._arm(step.shard, lambda p: p.cut_off(step.peer, step.operations)),
            s.Trouble: lambda step: self._arm(
                step.shard, lambda p: p.trouble_append(AppendFault(step.landing, step.amount))
            ),
            s.Land: lambda _: world.log.land_late(),
            s.Fill: self._fill,
            s.Flip: self._flip,
            s.Lose: self._lose,
            s.Snapshot: self._snapshot,
            s.Rescale: self._rescale,
            s.Upgrade: lambda _: world.upgrade(),
            s.Ask: self._ask,
        }

    def __call__(self, step: s.Step) -> None:
        self._do[type(step)](step)

    def _slot(self, number: int) -> Any:
        return self._world.slots[number % len(self._world.slots)]

    def _client(self, number: int) -> Any:
        return self._world.clients[number % len(self._world.clients)]

    def _arm(self, shard: int, arm: Callable[[Process], None]) -> None:
        self._world.arm(shard, arm)

    def _send(self, step: s.Send) -> None:
        client = self._client(step.client)
        client.want(step.command, once=step.once)
        self._world.act(client)

    def _go(self, step: s.Go) -> None:
        for _ in range(step.rounds):
            _round(self._world)

    def _pass(self, step: s.Pass) -> None:
        self._world.time.now += step.milliseconds

    def _jump(self, step: s.Jump) -> None:
        world = self._world
        clock = world.gateway_clock if step.shard < 0 else self._slot(step.shard).clock
        clock.skew += step.milliseconds
        world.counts["clock jumps"] += 1

    def _fill(self, step: s.Fill) -> None:
        self._world.counts["full disks"] += step.full and not self._world.disk.full
        self._world.disk.full = step.full

    def _flip(self, step: s.Flip) -> None:
        """Not after an upgrade: what the old version has handled cannot be handled again by the new one."""
        files = self._world.disk.files()
        if files and not self._world.version:
            self._world.disk.flip(files[step.file % len(files)], step.bit)
            self._world.flipped = True
            self._world.counts["bits flipped"] += 1

    def _lose(self, step: s.Lose) -> None:
        self._world.lost_responses += step.responses
        self._world.counts["responses lost"] += step.responses

    def _snapshot(self, step: s.Snapshot) -> None:
        partition = step.partition % self._world.setup.partitions
        owner = self._world.owner_of(partition)
        if owner is not None:
            owner.request(b"somebody", TakeSnapshot(0, partition, "", ASK_TIMEOUT_MS))

    def _rescale(self, step: s.Rescale) -> None:
        world = self._world
        if step.clean:
            world.stop_all()
        for slot in world.slots:
            if slot.owner is not None:
                slot.owner.kill()
        world.counts["rescales"] += 1
        world.make_slots(step.shards)

    def _ask(self, step: s.Ask) -> None:
        questions = self._world.subject.questions
        if questions:
            self._world.ask(self._client(step.client), questions[step.question % len(questions)], own=step.own)
